"""Compose a recipe: Hydra groups, files, words of the command line, its parent and children."""
