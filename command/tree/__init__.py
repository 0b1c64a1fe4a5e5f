"""A run and what follows from its checkpoints: the recipes of its children, and their course."""
