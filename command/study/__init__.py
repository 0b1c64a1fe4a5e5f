"""Studies: searches and lists of runs of one recipe, from a file in ``studies/`` to a page."""
