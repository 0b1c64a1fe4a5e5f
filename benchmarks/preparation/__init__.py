"""Time and memory of preparing and opening a corpus, relative to peers."""
