"""Slurm and OpenPBS, each by its own commands.

A chain is one array on Slurm, whose tasks run one at a time; on PBS each job queues the next.
"""

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.scheduler import JobPlace, JobState, SchedulerError, check_own
from components.run.event_log import job_name

ANSWERS_WITHIN_SECONDS = 60
_RUNNING = ("RUNNING", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING", "STOPPED")
_WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "SUSPENDED")
_SLURM_GONE = ("Invalid job id",)  # what squeue and scancel say of jobs that have ended
# A field without a width is not cut; the bar is a separator. The last is a path, which may have
# bars itself; of a job that waits it has %A and %a still.
_FIELDS = ("JobArrayID", "State", "Reason", "NodeList", "UserName", "STDOUT")
_FORMAT = ",".join(f"{field}:|" for field in _FIELDS)
# Letters of `qstat`: PBS Professional Reference Guide, "Job States" (openpbs.org).
_RUNNING_LETTERS = ("R", "E", "B")
_WAITING_LETTERS = ("Q", "H", "W", "T", "S", "U", "M")
_PBS_GONE = ("Unknown Job", "has finished")
_NO_HISTORY = "job history"  # what qstat -x says where the site keeps none
Tree = Mapping[str, object]


class Slurm:
    """Manual pages: https://slurm.schedmd.com/man_index.html."""

    name = "Slurm"
    program = "sbatch"
    ids = re.compile(r"[0-9]+(_[0-9]+)?")
    arrays = True
    outlives_nodes = True

    def submit(self, script: Path, *, after: str | None) -> str:
        order = [] if after is None else [f"--dependency=afterany:{after}"]
        answer = _ask(["sbatch", "--parsable", *order, str(script)])
        return answer.strip().partition(";")[0]  # a federation adds its cluster's name

    def states(self, chain: str, logs: Path) -> list[JobState]:
        words = ["squeue", "--noheader", "--array", f"--jobs={chain}", f"--Format={_FORMAT}"]
        found = []
        for line in (_ask_unless_gone(words, _SLURM_GONE) or "").splitlines():
            job, state, why, nodes, user, output = line.strip().split("|", len(_FIELDS) - 1)
            check_own(job, user=user, output=Path(output).parent, logs=logs)
            why = "" if why == "None" else why
            if state in _RUNNING:
                found.append(JobState(job=job, state="running", why=why, nodes=nodes))
            elif state in _WAITING:
                found.append(JobState(job=job, state="pending", why=why, nodes=nodes))
        return found

    def cancel(self, chain: str, logs: Path, *, running: bool) -> None:
        if self.states(chain, logs):
            which = [] if running else ["--state=PENDING"]
            _ask_unless_gone(["scancel", *which, chain], _SLURM_GONE)

    def exclude(self, chain: str, logs: Path, nodes: Sequence[str]) -> bool:
        """Name those that wait: of a chain whose job runs, scontrol reports a failure."""
        waiting = [job.job for job in self.states(chain, logs) if job.state == "pending"]
        if waiting:
            jobs = f"JobId={','.join(waiting)}"
            _ask(["scontrol", "update", jobs, f"ExcNodeList={','.join(nodes)}"])
        return True

    def place(self, seen: Mapping[str, str]) -> JobPlace:
        job = job_name(seen)
        assert job is not None, "Slurm names every job"
        nodes = _ask(["scontrol", "show", "hostnames", seen["SLURM_JOB_NODELIST"]])
        attempt = int(seen.get("SLURM_RESTART_COUNT", "0"))
        return JobPlace(job=job, attempt=attempt, nodes=tuple(nodes.split()))

    def on_each(self, hosts: Path, nodes: int, launch: Sequence[str]) -> list[str]:
        """Ask for all nodes of the job: each knows by which name Slurm lists it."""
        each = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
        return ["srun", *launch, *each, "--kill-on-bad-exit=0", "--wait=0"]


class Pbs:
    """Manual: https://openpbs.org. Of a chain any job's id leads to those after it."""

    name = "PBS"
    program = "qsub"
    ids = re.compile(r"[0-9]+(\[[0-9]*\])?(\.[A-Za-z0-9][A-Za-z0-9.-]*)?")
    arrays = False
    outlives_nodes = False

    def submit(self, script: Path, *, after: str | None) -> str:
        order = [] if after is None else ["-W", f"depend=afterany:{after}"]
        return _ask(["qsub", *order, str(script)]).strip()

    def states(self, chain: str, logs: Path) -> list[JobState]:
        return [
            JobState(
                job=str(job["id"]),
                state="running" if job["job_state"] in _RUNNING_LETTERS else "pending",
                why=str(job.get("comment", "")),
                nodes=str(job.get("exec_host", "")),
            )
            for job in self._jobs(chain, logs)
            if job["job_state"] in _RUNNING_LETTERS + _WAITING_LETTERS
        ]

    def cancel(self, chain: str, logs: Path, *, running: bool) -> None:
        jobs = [job for job in self.states(chain, logs) if running or job.state == "pending"]
        if jobs:
            # The last first: one that waits for another would begin when that one ends, or be
            # deleted with it.
            _ask_unless_gone(["qdel", *(job.job for job in reversed(jobs))], _PBS_GONE)

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
        found: list[Tree] = []
        waiting, asked = [chain], set[str]()
        while waiting:
            job = waiting.pop(0)
            if job in asked:  # jobs may wait for several, or for each other
                continue
            asked.add(job)
            if (tree := self._describe(job)) is None:
                continue
            user, output = _source(tree)
            if job == chain:
                check_own(chain, user=user, output=Path(output), logs=logs)
            if not found or _source(found[0]) == (user, output):
                found.append({**tree, "id": job})
                waiting += _successors(tree)
        return found

    def _describe(self, job: str) -> Tree | None:
        words = ["-f", "-F", "json", job]
        try:
            said = _ask_unless_gone(["qstat", "-x", *words], _PBS_GONE)
        except SchedulerError as error:
            if _NO_HISTORY not in str(error):
                raise
            said = _ask_unless_gone(["qstat", *words], _PBS_GONE)
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


def _ask(words: Sequence[str]) -> str:
    """Run a scheduler's command and return what it prints."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=True, timeout=ANSWERS_WITHIN_SECONDS
        )
    except subprocess.CalledProcessError as error:
        said = " ".join(str(error.stderr or error.stdout).split())
        raise SchedulerError(f"{words[0]}: {said}") from None
    except subprocess.TimeoutExpired as error:
        raise SchedulerError(f"{words[0]}: no answer within {error.timeout} s") from None
    return done.stdout


def _ask_unless_gone(words: Sequence[str], gone: Sequence[str]) -> str | None:
    """Ask; None if a word of ``gone`` is in the refusal: the jobs have ended meanwhile."""
    try:
        return _ask(words)
    except SchedulerError as error:
        if any(word in str(error) for word in gone):
            return None
        raise
