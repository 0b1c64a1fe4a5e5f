"""Where this process runs, as its scheduler tells it: on which node, in which job."""

import socket
from collections.abc import Mapping


def node_name(seen: Mapping[str, str]) -> str:
    """Return the node's name as the scheduler knows it, or else as the node calls itself."""
    return seen.get("SLURMD_NODENAME") or socket.gethostname()


def job_name(seen: Mapping[str, str]) -> str | None:
    """Return the job's id, ``ID_NUMBER`` for a task of Slurm's arrays; None outside of jobs."""
    if "SLURM_ARRAY_JOB_ID" in seen:
        return f"{seen['SLURM_ARRAY_JOB_ID']}_{seen['SLURM_ARRAY_TASK_ID']}"
    return seen.get("SLURM_JOB_ID") or seen.get("PBS_JOBID")
