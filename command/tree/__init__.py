"""Execute a tree of runs: here, or by jobs that submit what is due."""
