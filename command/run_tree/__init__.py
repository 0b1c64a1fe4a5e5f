"""A run and what follows from its checkpoints: recipes, folders and states of its children."""
