"""Checks of every supported version of torch and Python."""
