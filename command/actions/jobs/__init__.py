"""Actions on a cluster and its jobs: scripts, submission, what became of them, nodes."""
