"""A run and what follows from its checkpoints: recipes of its children, and their course."""
