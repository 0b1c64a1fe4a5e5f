"""Checks of a node before ranks start on it."""
