"""Files that people write: which may be read, and YAML with the lines of its keys."""
