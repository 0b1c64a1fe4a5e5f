"""How a run lives on: what watches it, what it does about faults, and what it tells of them."""
