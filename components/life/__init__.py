"""How a run lives on: what watches it, what it does when something goes wrong, what it tells."""
