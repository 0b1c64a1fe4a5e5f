"""The Python side of site profiles: job scripts for SLURM and PBS."""
