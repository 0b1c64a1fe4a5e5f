"""Client of OpenPBS and PBS Professional. Each job of a chain queues the next one."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.chain import Fate
from cluster.scheduler import JobPlace, JobState, SchedulerError, is_own, user_name
from cluster.scheduler_command import run_command, run_command_or_none

# Job states of `qstat`: PBS Professional Reference Guide, "Job States" (openpbs.org).
_RUNNING_LETTERS = ("R", "E", "B")
_WAITING_LETTERS = ("Q", "H", "W", "T", "S", "U", "M")
_GONE = ("Unknown Job", "has finished")
_KILLED_AT_WALL = -29  # JOB_EXEC_KILL_WALLTIME of OpenPBS's job.h, the job's Exit_status
_LISTINGS = 5  # attempts: a job may end between qselect and qstat
QstatTree = Mapping[str, object]


class Pbs:
    """Manual: https://openpbs.org."""

    name = "PBS"
    program = "qsub"
    launcher = "mpiexec"
    ids = re.compile(r"[0-9]+(\[[0-9]*\])?(\.[A-Za-z0-9][A-Za-z0-9.-]*)?")
    arrays = False
    excludes = False

    def submit_script(self, script: Path, *, after: str | None) -> str:
        order = [] if after is None else ["-W", f"depend=afterany:{after}"]
        return run_command(["qsub", *order, str(script)]).strip()

    def list_jobs(self, chain: str, logs: Path) -> list[JobState]:
        return [
            JobState(
                job=str(job["id"]),
                state="running" if job["job_state"] in _RUNNING_LETTERS else "pending",
                why=_reason(job),
                nodes=",".join(_hosts(str(job.get("exec_host", "")))),
            )
            for job in self._jobs(chain, logs)
            if job["job_state"] in _RUNNING_LETTERS + _WAITING_LETTERS
        ]

    def cancel_jobs(self, chain: str, logs: Path, *, running: bool) -> None:
        jobs = [job for job in self.list_jobs(chain, logs) if running or job.state == "pending"]
        if jobs:
            # Newest first: a job that depends on another would begin when the other ends, or
            # be deleted with it.
            run_command_or_none(["qdel", *(job.job for job in reversed(jobs))], _GONE)

    def exclude_nodes(
        self, chain: str, logs: Path, nodes: Sequence[str], *, needed: int
    ) -> bool:
        """Request one more node for each avoided node. Preflight then excludes avoided nodes.

        A PBS select statement can name nodes to use but not nodes to avoid. The names of all
        other nodes would bind the job to these nodes, even if they are busy.
        """
        for job in self._jobs(chain, logs):
            if job["job_state"] in _WAITING_LETTERS:
                resources = job.get("Resource_List")
                old = str(resources.get("select", "")) if isinstance(resources, Mapping) else ""
                _, colon, each = old.partition(":")
                new = f"{needed + len(nodes)}{colon}{each}"
                if old != new:
                    run_command(["qalter", "-l", f"select={new}", str(job["id"])])
        return True

    def find_eligible_nodes(self, job: str) -> frozenset[str] | None:
        """Return None: PBS jobs do not avoid a node before they start there."""
        return None

    def find_exit_reason(self, job: str) -> Fate:
        try:
            described = self._ask(job)
        except SchedulerError:
            return "gone"
        if described is None:
            return "gone"
        _, tree = described.popitem()
        if tree.get("job_state") in _WAITING_LETTERS:
            return "put back"
        return "wall" if tree.get("Exit_status") == _KILLED_AT_WALL else "gone"

    def read_job_place(self, seen: Mapping[str, str]) -> JobPlace:
        """Read the job's environment. The attempt is 0: PBS has no variable for it."""
        lines = Path(seen["PBS_NODEFILE"]).read_text("utf-8").split()
        return JobPlace(job=seen["PBS_JOBID"], attempt=0, nodes=tuple(dict.fromkeys(lines)))

    def on_each(self, hosts: Path, nodes: int | str, launch: Sequence[str]) -> list[str]:
        """Return words that place task i on node i of ``hosts``.

        The options are those of HPE's client: Cray-HPE/craycli, cray/modules/mpiexec/cli.py.
        """
        options = ["-n", str(nodes), "--ppn", "1", "--hostfile", str(hosts)]
        return ["mpiexec", *options, *launch, "--cpu-bind", "none", "--no-abort-on-failure"]

    def _jobs(self, chain: str, logs: Path) -> list[QstatTree]:
        """Return the run's jobs, sorted by id. Elements replace their array ``ID[]``."""
        for _ in range(_LISTINGS):
            ids = sorted(run_command(["qselect", "-u", user_name()]).split(), key=_number)
            if not ids:
                return []
            if (known := self._ask(*ids)) is not None:
                break
        else:
            raise SchedulerError("qstat: jobs end faster than qstat lists them")
        own_jobs: list[QstatTree] = []
        for job, tree in known.items():
            user = str(tree.get("Job_Owner", "")).partition("@")[0]  # USER@HOST
            # HOST:FOLDER/ or HOST:FOLDER/FILE
            output = str(tree.get("Output_Path", "")).partition(":")[2].rpartition("/")[0]
            outputs = (Path(output),)
            if not is_own(job, user=user, outputs=outputs, logs=logs, known=job == chain):
                continue
            elements = self._ask("-t", job) or {} if "[]" in job else {job: tree}
            own_jobs += [
                {**element, "id": name}
                for name, element in elements.items()
                if "[]" not in name
            ]
        return own_jobs

    def _ask(self, *words: str) -> dict[str, QstatTree] | None:
        """Return qstat's description of jobs, including ended jobs if PBS keeps a history.

        Return None if a job is gone. If PBS keeps no history, ``qstat -x`` succeeds, its JSON
        has no ``Jobs``, and the reason is on standard error.
        """
        flags, ids = words[: words[0] == "-t"], words[words[0] == "-t" :]
        output = ""
        for options in (["-x"], []):
            command = ["qstat", *options, *flags, "-f", "-F", "json", *ids]
            answer = run_command_or_none(command, _GONE)
            if answer is None:
                return None
            output = answer
            try:
                jobs = json.loads(output).get("Jobs", {})
                if jobs:
                    assert all(isinstance(described, dict) for described in jobs.values())
                    return dict(jobs)
            except (ValueError, AttributeError):
                break
        raise SchedulerError(f"qstat: no JSON about {', '.join(ids)}, got {output[:80]!r}")


def _reason(tree: QstatTree) -> str:
    """Return PBS's comment and the cause of a hold: the previous job, the user or the site."""
    letter, comment = str(tree["job_state"]), str(tree.get("comment", ""))
    if letter != "H":
        return comment
    holds, follows = str(tree.get("Hold_Types", "n")), "after" in str(tree.get("depend", ""))
    if follows and holds in {"s", "n"}:  # PBS sets hold s for a dependency
        return "waits for the previous job"
    hold = f"is held (Hold_Types={holds}): release the job with qrls, or ask the site"
    return comment if comment and holds == "n" else "; ".join(filter(None, [comment, hold]))


def _hosts(exec_host: str) -> list[str]:
    """Return the distinct nodes of ``NODE/0*208+NODE/0*208``."""
    return list(
        dict.fromkeys(place.partition("/")[0] for place in exec_host.split("+") if place)
    )


def _number(job: str) -> int:
    return int(job.partition(".")[0].partition("[")[0])
