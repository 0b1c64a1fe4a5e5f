"""Checkpoints: written during training, atomic, and verified before loading."""
