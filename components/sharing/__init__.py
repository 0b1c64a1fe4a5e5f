"""Locks that freeze a recipe with its software and data, and comparisons of recipes."""
