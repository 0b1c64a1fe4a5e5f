"""OpenPBS and PBS Professional by their own commands: each job of a chain queues the next."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.chain import Fate
from cluster.names import fold_names
from cluster.scheduler import JobPlace, JobState, SchedulerError, is_own, user_name
from cluster.scheduler_command import run_command, run_command_or_none

# Letters of `qstat`: PBS Professional Reference Guide, "Job States" (openpbs.org).
_RUNNING_LETTERS = ("R", "E", "B")
_WAITING_LETTERS = ("Q", "H", "W", "T", "S", "U", "M")
_GONE = ("Unknown Job", "has finished")
_KILLED_AT_WALL = -29  # JOB_EXEC_KILL_WALLTIME of OpenPBS's job.h, the job's Exit_status
# Of a job that no comment explains; Hold_Types: u is its user, o an operator, s PBS itself.
_HELD_BY = {
    "u": "was held by its user: qrls it",
    "o": "was held by an operator: ask the site",
    "p": "was held for a wrong password: ask the site",
    "s": "was held by the site: ask them",
}
_LETTERS = {
    "W": "waits for the time at which it may begin",
    "S": "was suspended by the site",
    "U": "was suspended: its machine is in use",
    "T": "is being moved to another queue or server",
    "Q": "waits for its turn; the scheduler has not said why",
}
_LISTINGS = 5  # a job may end between the list of ids and the question about them
Tree = Mapping[str, object]


class Pbs:
    """Manual: https://openpbs.org."""

    name = "PBS"
    program = "qsub"
    launcher = "mpiexec"
    ids = re.compile(r"[0-9]+(\[[0-9]*\])?(\.[A-Za-z0-9][A-Za-z0-9.-]*)?")
    arrays = False
    excludes = False

    def submit(self, script: Path, *, after: str | None) -> str:
        order = [] if after is None else ["-W", f"depend=afterany:{after}"]
        return run_command(["qsub", *order, str(script)]).strip()

    def states(self, chain: str, logs: Path) -> list[JobState]:
        return [
            JobState(
                job=str(job["id"]),
                state="running" if job["job_state"] in _RUNNING_LETTERS else "pending",
                why=_reason(job),
                nodes=fold_names(_hosts(str(job.get("exec_host", "")))),
            )
            for job in self._jobs(chain, logs)
            if job["job_state"] in _RUNNING_LETTERS + _WAITING_LETTERS
        ]

    def cancel(self, chain: str, logs: Path, *, running: bool) -> None:
        jobs = [job for job in self.states(chain, logs) if running or job.state == "pending"]
        if jobs:
            # The last first: one that waits for another would begin when that one ends, or be
            # deleted with it.
            run_command_or_none(["qdel", *(job.job for job in reversed(jobs))], _GONE)

    def exclude(self, chain: str, logs: Path, nodes: Sequence[str], *, needed: int) -> bool:
        """Ask for a node more for each that is avoided: the job's preflight leaves it out.

        A select statement can only name nodes to have, not nodes to do without; to name all
        the others would bind the job to them, whoever runs there.
        """
        for job in self._jobs(chain, logs):
            if job["job_state"] in _WAITING_LETTERS:
                asked = job.get("Resource_List")
                old = str(asked.get("select", "")) if isinstance(asked, Mapping) else ""
                _, colon, each = old.partition(":")
                new = f"{needed + len(nodes)}{colon}{each}"
                if old != new:
                    run_command(["qalter", "-l", f"select={new}", str(job["id"])])
        return True

    def able(self, job: str) -> frozenset[str] | None:
        """Leave it open: no job is kept off a node before it has begun there."""
        return None

    def fate(self, job: str) -> Fate:
        try:
            tree = self._describe(job)
        except SchedulerError:
            return "gone"
        if tree is None:
            return "gone"
        if tree.get("job_state") in _WAITING_LETTERS:
            return "put back"
        return "wall" if tree.get("Exit_status") == _KILLED_AT_WALL else "gone"

    def place(self, seen: Mapping[str, str]) -> JobPlace:
        """Read the job's own variables; none of them tells how often PBS ran it before."""
        lines = Path(seen["PBS_NODEFILE"]).read_text("utf-8").split()
        return JobPlace(job=seen["PBS_JOBID"], attempt=0, nodes=tuple(dict.fromkeys(lines)))

    def on_each(self, hosts: Path, nodes: int | str, launch: Sequence[str]) -> list[str]:
        """Name the nodes, so that task i is on the i-th; options as in HPE's own client.

        Cray-HPE/craycli, cray/modules/mpiexec/cli.py.
        """
        each = ["-n", str(nodes), "--ppn", "1", "--hostfile", str(hosts)]
        return ["mpiexec", *each, *launch, "--cpu-bind", "none", "--no-abort-on-failure"]

    def _jobs(self, chain: str, logs: Path) -> list[Tree]:
        """List the jobs, in the order of the queue; of an array, ``ID[]``, its elements."""
        for _ in range(_LISTINGS):
            ids = sorted(run_command(["qselect", "-u", user_name()]).split(), key=_number)
            if not ids:
                return []
            if (known := self._ask(*ids)) is not None:
                break
        else:
            raise SchedulerError("qstat: jobs end faster than they are listed")
        found: list[Tree] = []
        for job, tree in known.items():
            user, output = _source(tree)
            outputs = (Path(output),)
            if not is_own(job, user=user, outputs=outputs, logs=logs, known=job == chain):
                continue
            elements = self._ask("-t", job) or {} if "[]" in job else {job: tree}
            found += [{**one, "id": name} for name, one in elements.items() if "[]" not in name]
        return found

    def _describe(self, job: str) -> Tree | None:
        found = self._ask(job)
        return None if found is None else found.popitem()[1]

    def _ask(self, *words: str) -> dict[str, Tree] | None:
        """Describe jobs, with the history where the site keeps one; None if one is gone.

        Without history ``qstat -x`` succeeds: its JSON has no ``Jobs``, and why is on standard
        error.
        """
        flags, ids = words[: words[0] == "-t"], words[words[0] == "-t" :]
        said = ""
        for options in (["-x"], []):
            command = ["qstat", *options, *flags, "-f", "-F", "json", *ids]
            answer = run_command_or_none(command, _GONE)
            if answer is None:
                return None
            said = answer
            try:
                jobs = json.loads(said).get("Jobs", {})
                if jobs:
                    assert all(isinstance(described, dict) for described in jobs.values())
                    return dict(jobs)
            except (ValueError, AttributeError):
                break
        raise SchedulerError(f"qstat: no JSON about {', '.join(ids)}: {said[:80]!r}")


def _reason(tree: Tree) -> str:
    """Return PBS's comment, else why a job waits by its letter, hold and what it follows."""
    letter, comment = str(tree["job_state"]), str(tree.get("comment", ""))
    if letter in _RUNNING_LETTERS:
        return comment
    if letter == "H":
        follows = "after" in str(tree.get("depend", ""))  # then the hold s is PBS's own
        holds = str(tree.get("Hold_Types", "n")).replace("s", "" if follows else "s")
        named = [text for hold, text in _HELD_BY.items() if hold in holds]
        if follows and not named:
            return "waits for the job before it"
        return "; ".join([*([comment] if comment else []), *named]) or "is held"
    return comment or _LETTERS.get(letter, "")


def _hosts(exec_host: str) -> list[str]:
    """Read the nodes of ``NODE/0*208+NODE/0*208``, each once."""
    return list(dict.fromkeys(one.partition("/")[0] for one in exec_host.split("+") if one))


def _number(job: str) -> int:
    return int(job.partition(".")[0].partition("[")[0])


def _source(tree: Tree) -> tuple[str, str]:
    """Return USER of ``USER@HOST``, and FOLDER of ``HOST:FOLDER/`` or ``HOST:FOLDER/FILE``."""
    user = str(tree.get("Job_Owner", "")).partition("@")[0]
    output = str(tree.get("Output_Path", "")).partition(":")[2].rpartition("/")[0]
    return user, output
