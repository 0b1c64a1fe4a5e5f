"""Slurm by its own commands: a chain is one array, whose tasks run one at a time."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.chain import Fate, chain_of
from cluster.scheduler import JobPlace, JobState, SchedulerError, is_own, user_name
from cluster.scheduler_command import run_command, run_command_or_none
from components.run.event_log import job_name

_RUNNING = ("RUNNING", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING", "STOPPED")
_WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "SUSPENDED")
_GONE = ("Invalid job id",)  # what squeue and scancel say of jobs that have ended
# A field without a width is not cut; the bar is a separator. The last is a path, which may have
# bars itself; of a job that waits it has %A and %a still.
_FIELDS = ("JobArrayID", "State", "Reason", "NodeList", "UserName", "STDOUT")
_FORMAT = ",".join(f"{field}:|" for field in _FIELDS)
# What becomes of a job: "Job states" in squeue's manual. Who waits again was put back.
_FATES: Mapping[str, Fate] = {
    "TIMEOUT": "wall",
    "DEADLINE": "wall",
    "OUT_OF_MEMORY": "memory",
    "FAILED": "failed",
    "NODE_FAIL": "node",
    "BOOT_FAIL": "node",
    "PREEMPTED": "put back",
    "CANCELLED": "cancelled",
    **dict.fromkeys(_WAITING, "put back"),
}
_OF_A_JOB = ("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "MASTER_")
# States of nodes, as sinfo shortens them, in which no job starts until somebody has acted.
_UNABLE = ("down", "drain", "drng", "fail", "maint", "unk", "inval", "error")


class Slurm:
    """Manual pages: https://slurm.schedmd.com/man_index.html."""

    name = "Slurm"
    program = "sbatch"
    launcher = "srun"
    ids = re.compile(r"[0-9]+(_[0-9]+)?")
    arrays = True
    excludes = True

    def submit(self, script: Path, *, after: str | None) -> str:
        order = [] if after is None else [f"--dependency=afterany:{after}"]
        words = ["sbatch", "--parsable", *order, str(script)]
        answer = run_command(words, without_own_job(os.environ))
        return answer.strip().partition(";")[0]  # a federation adds its cluster's name

    def states(self, chain: str, logs: Path) -> list[JobState]:
        words = ["squeue", "--noheader", "--array", f"--user={user_name()}"]
        found = []
        for line in run_command([*words, f"--Format={_FORMAT}"]).splitlines():
            job, state, why, nodes, user, output = line.strip().split("|", len(_FIELDS) - 1)
            known = job == chain or chain_of(job) == chain
            # Of a job that waits the pattern is shown, in which %% is a percent sign.
            shown = (Path(output).parent, Path(output.replace("%%", "%")).parent)
            if not is_own(job, user=user, outputs=shown, logs=logs, known=known):
                continue
            why = "" if why == "None" else why
            if state in _RUNNING:
                found.append(JobState(job=job, state="running", why=why, nodes=nodes))
            elif state in _WAITING:
                found.append(JobState(job=job, state="pending", why=why, nodes=nodes))
        return found

    def cancel(self, chain: str, logs: Path, *, running: bool) -> None:
        if ids := dict.fromkeys(chain_of(one.job) for one in self.states(chain, logs)):
            which = [] if running else ["--state=PENDING"]
            run_command_or_none(["scancel", *which, *ids], _GONE)

    def exclude(self, chain: str, logs: Path, nodes: Sequence[str], *, needed: int) -> bool:
        """Name those that wait: of a chain whose job runs, scontrol reports a failure."""
        waiting = [job.job for job in self.states(chain, logs) if job.state == "pending"]
        if waiting:
            jobs = f"JobId={','.join(waiting)}"
            run_command(["scontrol", "update", jobs, f"ExcNodeList={','.join(nodes)}"])
        return True

    def able(self, job: str) -> frozenset[str] | None:
        said = self._described(job)
        if said is None or "Partition" not in said:
            return None
        where = f"--partition={said['Partition']}"
        command = ["sinfo", "--noheader", "--Node", where, "--format=%N %t"]
        lines = run_command(command).splitlines()
        states = [line.split() for line in lines]
        # A star marks a node that does not answer.
        able = (
            one[0] for one in states if not one[1].startswith(_UNABLE) and "*" not in one[1]
        )
        return frozenset(able)

    def fate(self, job: str) -> Fate:
        said = self._described(job)
        return "gone" if said is None else _FATES.get(said.get("JobState", ""), "gone")

    def _described(self, job: str) -> dict[str, str] | None:
        """Read ``KEY=VALUE`` of a job, which Slurm forgets some minutes after its end."""
        try:
            said = run_command_or_none(["scontrol", "--oneliner", "show", "job", job], _GONE)
        except SchedulerError:
            return None
        lines = (said or "").splitlines()
        return dict(re.findall(r"(\w+)=(\S*)", lines[0])) if lines else None

    def place(self, seen: Mapping[str, str]) -> JobPlace:
        job = job_name(seen)
        assert job is not None, "Slurm names every job"
        # A job that outlives a node loses it, and its variables keep naming it.
        own = (self._described(job) or {}).get("NodeList") or seen["SLURM_JOB_NODELIST"]
        nodes = run_command(["scontrol", "show", "hostnames", own])
        attempt = int(seen.get("SLURM_RESTART_COUNT", "0"))
        return JobPlace(job=job, attempt=attempt, nodes=tuple(nodes.split()))

    def on_each(self, hosts: Path, nodes: int | str, launch: Sequence[str]) -> list[str]:
        """Name the nodes: a job that has lost one, or leaves one out, starts on the others."""
        each = [f"--nodelist={hosts}", f"--nodes={nodes}", f"--ntasks={nodes}"]
        each += ["--ntasks-per-node=1", "--no-kill"]
        return ["srun", *launch, *each, "--kill-on-bad-exit=0", "--wait=0"]


def without_own_job(seen: Mapping[str, str]) -> dict[str, str]:
    """Leave out of an environment what describes the job that this process is in, if any.

    sbatch hands all of it on, ``SLURM_`` even with ``--export=NONE``: a job that was submitted
    by an array's element would take itself for that, and srun there ask for its cores. The
    prefixes are those of `clean_env` in facebookincubator/submitit. Names of the job's folder
    on its node go with it, as those of caches.
    """
    if "SLURM_JOB_ID" not in seen:
        return dict(seen)
    own = f"kochbuch-{seen['SLURM_JOB_ID']}"
    return {
        name: value
        for name, value in seen.items()
        if name == "SLURM_CONF" or not (name.startswith(_OF_A_JOB) or own in value)
    }
