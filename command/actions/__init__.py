"""One file an action; the file's stem is what ``action=`` takes, so a new one edits nothing."""
