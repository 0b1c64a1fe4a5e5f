"""Studies: searches and lists of runs of one recipe, from a file in ``studies/`` to a page.

May use every action of the command line and the report's pages; `command.main` alone uses it.
"""
