"""Jobs: runs that are checked on the login node and submitted, and their status."""
