"""Freeze a recipe with all that it rests on, and tell what differs from it."""
