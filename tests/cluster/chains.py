"""A chain on JUWELS whose scheduler answers, and what its jobs leave."""

import json
from collections.abc import Callable

from cluster.records import Jobs
from tests.cluster.jobs import submitted
from tests.cluster.programs import Programs, queued

NODES = tuple(f"jwb{number:04d}" for number in range(1, 129))
Run = Callable[..., Jobs]


def task(number: int, *, restarts: int = 0) -> dict[str, str]:
    """What Slurm tells a task of the array 77."""
    return {
        "SLURM_JOB_ID": str(80 + number),
        "SLURM_ARRAY_JOB_ID": "77",
        "SLURM_ARRAY_TASK_ID": str(number),
        "SLURM_JOB_NODELIST": "jwb[0001-0128]",
        "SLURM_RESTART_COUNT": str(restarts),
    }


def waiting_chain(run_on: Run, programs: Programs) -> Jobs:
    """A chain of four on 128 nodes of JUWELS, whose scheduler answers."""
    programs.add("scontrol", says="\n".join(NODES))
    for name in ("scancel", "srun", "sinfo"):
        programs.add(name)
    jobs = run_on("juwels")
    programs.add("squeue", says=queued(jobs.path, "77_4|PENDING|Dependency|"))
    submitted(jobs, "77", 4)
    return jobs


def save(jobs: Jobs, tokens: int) -> None:
    folder = jobs.folder.checkpoints / f"tokens-{tokens:015d}"
    folder.mkdir()
    (folder / "progress.json").write_text(json.dumps({"tokens": tokens}))


def finish(jobs: Jobs, status: str) -> None:
    jobs.folder.write_json("results.json", {"status": status})


def fail(jobs: Jobs, rank: int, message: str) -> None:
    (jobs.folder.path / "ranks" / f"error-{rank}.json").write_text(
        json.dumps({"message": message})
    )
