"""How a corpus is prepared and opened: time and memory beside peers."""
