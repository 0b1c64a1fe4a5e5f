"""Copies of Python's packages and of this code on each node, made before the ranks start."""
