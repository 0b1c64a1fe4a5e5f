"""Slurm, by its own commands; a chain is one array whose tasks run one at a time."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.scheduler import JobState, Place, SchedulerError, ask
from components.life.place import job_name

_RUNNING = ("RUNNING", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING", "STOPPED")
_WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "SUSPENDED")
_GONE = "Invalid job id"  # what squeue and scancel say of jobs that have ended


class Slurm:
    """Manual pages: https://slurm.schedmd.com/man_index.html."""

    name = "Slurm"
    program = "sbatch"
    arrays = True
    outlives_nodes = True

    def submit(self, script: Path, *, after: str | None) -> str:
        order = [] if after is None else [f"--dependency=afterany:{after}"]
        answer = ask(["sbatch", "--parsable", *order, str(script)])
        return answer.strip().partition(";")[0]  # a federation adds its cluster's name

    def states(self, chain: str) -> list[JobState]:
        words = ["squeue", "--noheader", "--array", f"--jobs={chain}", "--format=%i|%T|%r|%N"]
        try:
            lines = ask(words).splitlines()
        except SchedulerError as error:
            if _GONE in str(error):
                return []
            raise
        found = [line.strip().split("|") for line in lines]
        return [
            JobState(
                job=job,
                state="running" if state in _RUNNING else "pending",
                why="" if why == "None" else why,
                nodes=nodes,
            )
            for job, state, why, nodes in found
            if state in _RUNNING + _WAITING
        ]

    def cancel(self, chain: str, *, running: bool) -> None:
        try:
            ask(["scancel", *([] if running else ["--state=PENDING"]), chain])
        except SchedulerError as error:
            if _GONE not in str(error):
                raise

    def exclude(self, chain: str, nodes: Sequence[str]) -> bool:
        """Name those that wait: of a chain whose job runs, scontrol reports a failure."""
        waiting = [job.job for job in self.states(chain) if job.state == "pending"]
        if waiting:
            jobs = f"JobId={','.join(waiting)}"
            ask(["scontrol", "update", jobs, f"ExcNodeList={','.join(nodes)}"])
        return True

    def place(self, seen: Mapping[str, str]) -> Place:
        job = job_name(seen)
        assert job is not None, "Slurm names every job"
        nodes = ask(["scontrol", "show", "hostnames", seen["SLURM_JOB_NODELIST"]])
        return Place(
            job=job,
            attempt=int(seen.get("SLURM_RESTART_COUNT", "0")),
            nodes=tuple(nodes.split()),
        )

    def on_each(self, hosts: Path, nodes: int, launch: Sequence[str]) -> list[str]:
        """Ask for all nodes of the job: each knows by which name Slurm lists it."""
        each = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
        return ["srun", *launch, *each, "--kill-on-bad-exit=0", "--wait=0"]
