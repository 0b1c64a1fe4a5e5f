"""Dry run: the real training step of one rank per role, on fake tensors without values."""
