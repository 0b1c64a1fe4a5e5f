"""Node-local copies of Python's packages and of this code, made before the ranks start."""
