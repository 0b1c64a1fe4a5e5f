"""OpenPBS, by its own commands; in a chain each job queues the next one."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.scheduler import (
    JobPlace,
    JobState,
    SchedulerError,
    ask,
    ask_unless_gone,
    check_own,
)

# Letters of `qstat`: PBS Professional Reference Guide, "Job States" (openpbs.org).
_RUNNING = ("R", "E", "B")
_WAITING = ("Q", "H", "W", "T", "S", "U", "M")
_GONE = ("Unknown Job", "has finished")
_NO_HISTORY = "job history"  # what qstat -x says where the site keeps none
Tree = Mapping[str, object]


class Pbs:
    """Manual: https://openpbs.org. Of a chain any job's id leads to those after it."""

    name = "PBS"
    program = "qsub"
    ids = re.compile(r"[0-9]+(\[[0-9]*\])?(\.[A-Za-z0-9][A-Za-z0-9.-]*)?")
    arrays = False
    outlives_nodes = False

    def submit(self, script: Path, *, after: str | None) -> str:
        order = [] if after is None else ["-W", f"depend=afterany:{after}"]
        return ask(["qsub", *order, str(script)]).strip()

    def states(self, chain: str, logs: Path) -> list[JobState]:
        return [
            JobState(
                job=str(job["id"]),
                state="running" if job["job_state"] in _RUNNING else "pending",
                why=str(job.get("comment", "")),
                nodes=str(job.get("exec_host", "")),
            )
            for job in self._jobs(chain, logs)
            if job["job_state"] in _RUNNING + _WAITING
        ]

    def cancel(self, chain: str, logs: Path, *, running: bool) -> None:
        jobs = [job for job in self.states(chain, logs) if running or job.state == "pending"]
        if jobs:
            # The last first: one that waits for another would begin when that one ends, or be
            # deleted with it.
            ask_unless_gone(["qdel", *(job.job for job in reversed(jobs))], _GONE)

    def exclude(self, chain: str, logs: Path, nodes: Sequence[str]) -> bool:
        """PBS cannot keep a job away from nodes by their names."""
        return False

    def place(self, seen: Mapping[str, str]) -> JobPlace:
        """Read the job's own variables; none of them tells how often PBS ran it before."""
        lines = Path(seen["PBS_NODEFILE"]).read_text("utf-8").split()
        return JobPlace(job=seen["PBS_JOBID"], attempt=0, nodes=tuple(dict.fromkeys(lines)))

    def on_each(self, hosts: Path, nodes: int, launch: Sequence[str]) -> list[str]:
        """Name the nodes, so that task i is on the i-th; options as in HPE's own client.

        Cray-HPE/craycli, cray/modules/mpiexec/cli.py.
        """
        each = ["-n", str(nodes), "--ppn", "1", "--hostfile", str(hosts)]
        return ["mpiexec", *each, *launch, "--cpu-bind", "none", "--no-abort-on-failure"]

    def _jobs(self, chain: str, logs: Path) -> list[Tree]:
        """Follow a chain from one of its jobs through those that wait for one another.

        Another run may wait for this one; its output goes to another folder.
        """
        first = self._describe(chain)
        if first is None:
            return []
        source = user, output = _source(first)
        check_own(chain, user=user, output=Path(output), logs=logs)
        found: list[Tree] = [{**first, "id": chain}]
        waiting = _successors(first)
        while waiting:
            job = waiting.pop(0)
            tree = self._describe(job)
            if tree is not None and _source(tree) == source:
                found.append({**tree, "id": job})
                waiting += _successors(tree)
        return found

    def _describe(self, job: str) -> Tree | None:
        words = ["-f", "-F", "json", job]
        try:
            said = ask_unless_gone(["qstat", "-x", *words], _GONE)
        except SchedulerError as error:
            if _NO_HISTORY not in str(error):
                raise
            said = ask_unless_gone(["qstat", *words], _GONE)
        if said is None:
            return None
        try:
            (described,) = json.loads(said)["Jobs"].values()
        except (ValueError, KeyError):
            raise SchedulerError(f"qstat: no JSON about {job}: {said[:80]!r}") from None
        assert isinstance(described, dict)
        return described


def _source(tree: Tree) -> tuple[str, str]:
    """Return USER of ``USER@HOST``, and FOLDER of ``HOST:FOLDER/`` or ``HOST:FOLDER/FILE``."""
    user = str(tree.get("Job_Owner", "")).partition("@")[0]
    output = str(tree.get("Output_Path", "")).partition(":")[2].rpartition("/")[0]
    return user, output


def _successors(tree: Tree) -> list[str]:
    """Read ``beforeany:ID@server``, which PBS notes at a job that others wait for."""
    parts = (part.split(":") for part in str(tree.get("depend", "")).split(","))
    waiting = (job for kind, *jobs in parts if kind == "beforeany" for job in jobs)
    return [job.partition("@")[0] for job in waiting]
