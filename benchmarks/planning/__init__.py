"""Accuracy and speed of the planner and the layout search."""
