"""The real training step of one rank of each role, on tensors without values."""
