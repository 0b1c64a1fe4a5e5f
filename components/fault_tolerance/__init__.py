"""How a run lives on: what watches it, what it does in trouble, and what it tells of it."""
