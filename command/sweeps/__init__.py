"""Sweeps: the points of a command line, their runs, and a table of them."""
