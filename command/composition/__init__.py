"""Compose a recipe from Hydra groups, files, command-line words, its parent and children."""
