"""Execute a tree of runs, on this machine or with jobs that submit its due nodes."""
