"""Actions on a cluster and its jobs: scripts, submission, status, node checks."""
