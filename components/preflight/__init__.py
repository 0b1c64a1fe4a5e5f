"""What a node is asked before ranks start on it."""
