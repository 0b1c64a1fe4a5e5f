"""OpenPBS, by its own commands; in a chain each job queues the next one."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.scheduler import JobState, Place, SchedulerError, ask

# Letters of `qstat`: PBS Professional Reference Guide, "Job States" (openpbs.org).
_RUNNING = ("R", "E", "B")
_WAITING = ("Q", "H", "W", "T", "S", "U", "M")
_GONE = ("Unknown Job Id", "Job has finished")


class Pbs:
    """Manual: https://openpbs.org. Of a chain the first job's id leads to the others."""

    name = "PBS"
    program = "qsub"

    def submit(self, script: Path, *, after: str | None) -> str:
        order = [] if after is None else ["-W", f"depend=afterany:{after}"]
        return ask(["qsub", *order, str(script)]).strip()

    def states(self, chain: str) -> list[JobState]:
        found = []
        for job in self._jobs(chain):
            state = str(job["job_state"])
            if state in _RUNNING + _WAITING:
                found.append(
                    JobState(
                        job=str(job["id"]),
                        state="running" if state in _RUNNING else "pending",
                        why=str(job.get("comment", "")),
                        nodes=str(job.get("exec_host", "")),
                    )
                )
        return found

    def cancel(self, chain: str, *, running: bool) -> None:
        jobs = [job for job in self.states(chain) if running or job.state == "pending"]
        if jobs:
            # The last first: one that waits for another would begin when that one ends.
            ask(["qdel", *(job.job for job in reversed(jobs))])

    def exclude(self, chain: str, nodes: Sequence[str]) -> bool:
        """PBS cannot keep a job away from nodes by their names."""
        return False

    def place(self, seen: Mapping[str, str]) -> Place:
        lines = Path(seen["PBS_NODEFILE"]).read_text("utf-8").split()
        return Place(
            job=seen["PBS_JOBID"],
            attempt=max(0, int(seen.get("PBS_RUNCOUNT", "1")) - 1),
            nodes=tuple(dict.fromkeys(lines)),
        )

    def _jobs(self, chain: str) -> list[Mapping[str, object]]:
        """Follow a chain from its first job through those that wait for one another."""
        found: list[Mapping[str, object]] = []
        waiting = [chain]
        while waiting:
            job = waiting.pop(0)
            tree = self._describe(job)
            if tree is not None:
                found.append({**tree, "id": job})
            waiting += [other for other in _successors(tree) if other not in waiting]
        return found

    def _describe(self, job: str) -> Mapping[str, object] | None:
        try:
            tree = json.loads(ask(["qstat", "-x", "-f", "-F", "json", job]))
        except SchedulerError as error:
            if any(word in str(error) for word in _GONE):
                return None
            raise
        (described,) = tree["Jobs"].values()
        assert isinstance(described, dict)
        return described


def _successors(tree: Mapping[str, object] | None) -> list[str]:
    """Read ``beforeany:ID@server``, which PBS notes at a job that others wait for."""
    depend = str((tree or {}).get("depend", ""))
    kinds = [part.split(":") for part in depend.split(",") if part]
    return [
        job.partition("@")[0] for kind, *jobs in kinds if kind == "beforeany" for job in jobs
    ]
