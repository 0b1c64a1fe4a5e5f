"""Faults that can be rehearsed: a file each, named like its `fault`, with a function `fire`."""
