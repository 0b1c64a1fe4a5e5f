"""Jobs: check runs on the login node, submit them, and report their status."""
