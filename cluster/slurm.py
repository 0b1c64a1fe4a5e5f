"""Client of Slurm. A chain is one job array with one running task."""

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
_GONE = ("Invalid job id",)  # error of squeue and scancel for jobs that have ended
# A field without a width is not truncated; the bar is a separator. The last field is a path,
# which may contain bars. For a pending job it contains the patterns %A and %a.
_FIELDS = ("JobArrayID", "State", "Reason", "NodeList", "UserName", "STDOUT")
_FORMAT = ",".join(f"{field}:|" for field in _FIELDS)
# Ends of a job by state: "Job states" in squeue's manual. A job that waits was requeued.
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
# Node states in sinfo's short form in which no job starts until an administrator acts.
_UNABLE = ("down", "drain", "drng", "fail", "maint", "unk", "inval", "error")


class Slurm:
    """Manual pages: https://slurm.schedmd.com/man_index.html."""

    name = "Slurm"
    program = "sbatch"
    launcher = "srun"
    ids = re.compile(r"[0-9]+(_[0-9]+)?")
    arrays = True
    excludes = True

    def submit_script(self, script: Path, *, after: str | None) -> str:
        order = [] if after is None else [f"--dependency=afterany:{after}"]
        words = ["sbatch", "--parsable", *order, str(script)]
        answer = run_command(words, without_own_job(os.environ))
        return answer.strip().partition(";")[0]  # a federation adds its cluster's name

    def list_jobs(self, chain: str, logs: Path) -> list[JobState]:
        words = ["squeue", "--noheader", "--array", f"--user={user_name()}"]
        jobs = []
        for line in run_command([*words, f"--Format={_FORMAT}"]).splitlines():
            job, state, why, nodes, user, output = line.strip().split("|", len(_FIELDS) - 1)
            known = job == chain or chain_of(job) == chain
            # For a pending job, squeue shows the pattern, in which %% is a percent sign.
            outputs = (Path(output).parent, Path(output.replace("%%", "%")).parent)
            if not is_own(job, user=user, outputs=outputs, logs=logs, known=known):
                continue
            why = "" if why == "None" else why
            if state in _RUNNING:
                jobs.append(JobState(job=job, state="running", why=why, nodes=nodes))
            elif state in _WAITING:
                jobs.append(JobState(job=job, state="pending", why=why, nodes=nodes))
        return jobs

    def cancel_jobs(self, chain: str, logs: Path, *, running: bool) -> None:
        if ids := dict.fromkeys(chain_of(job.job) for job in self.list_jobs(chain, logs)):
            options = [] if running else ["--state=PENDING"]
            run_command_or_none(["scancel", *options, *ids], _GONE)

    def exclude_nodes(
        self, chain: str, logs: Path, nodes: Sequence[str], *, needed: int
    ) -> bool:
        """Update each pending job by its id: scontrol fails for a chain with a running job."""
        waiting = [job.job for job in self.list_jobs(chain, logs) if job.state == "pending"]
        if waiting:
            jobs = f"JobId={','.join(waiting)}"
            run_command(["scontrol", "update", jobs, f"ExcNodeList={','.join(nodes)}"])
        return True

    def find_eligible_nodes(self, job: str) -> frozenset[str] | None:
        described = self._described(job)
        if described is None or "Partition" not in described:
            return None
        partition = f"--partition={described['Partition']}"
        command = ["sinfo", "--noheader", "--Node", partition, "--format=%N %t"]
        states = [line.split() for line in run_command(command).splitlines()]
        answering = [(node, state) for node, state in states if "*" not in state]
        return frozenset(node for node, state in answering if not state.startswith(_UNABLE))

    def find_exit_reason(self, job: str) -> Fate:
        described = self._described(job) or {}
        return _FATES.get(described.get("JobState", ""), "gone")

    def _described(self, job: str) -> dict[str, str] | None:
        """Return a job's ``KEY=VALUE`` fields. Slurm forgets a job minutes after its end."""
        try:
            output = run_command_or_none(["scontrol", "--oneliner", "show", "job", job], _GONE)
        except SchedulerError:
            return None
        lines = (output or "").splitlines()
        return dict(re.findall(r"(\w+)=(\S*)", lines[0])) if lines else None

    def read_job_place(self, seen: Mapping[str, str]) -> JobPlace:
        job = job_name(seen)
        assert job is not None, "Slurm names every job"
        # If a node fails, the job continues without it, but the job's variables still list it.
        node_list = (self._described(job) or {}).get("NodeList") or seen["SLURM_JOB_NODELIST"]
        nodes = run_command(["scontrol", "show", "hostnames", node_list])
        attempt = int(seen.get("SLURM_RESTART_COUNT", "0"))
        return JobPlace(job=job, attempt=attempt, nodes=tuple(nodes.split()))

    def on_each(self, hosts: Path, nodes: int | str, launch: Sequence[str]) -> list[str]:
        """Return srun's words with explicit nodes: a job may have lost or excluded some."""
        options = [f"--nodelist={hosts}", f"--nodes={nodes}", f"--ntasks={nodes}"]
        options += ["--ntasks-per-node=1", "--no-kill"]
        return ["srun", *launch, *options, "--kill-on-bad-exit=0", "--wait=0"]


def without_own_job(seen: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without variables of the job that this process runs in, if any.

    sbatch passes all variables on, ``SLURM_`` even with ``--export=NONE``. A job submitted by
    an array element would take itself for that element, and its srun would request the
    element's cores. The prefixes are the same as in `clean_env` of facebookincubator/submitit.
    Variables that contain the job's folder on the node, such as caches, are also removed.
    """
    if "SLURM_JOB_ID" not in seen:
        return dict(seen)
    job_folder = f"kochbuch-{seen['SLURM_JOB_ID']}"
    return {
        name: value
        for name, value in seen.items()
        if name == "SLURM_CONF" or not (name.startswith(_OF_A_JOB) or job_folder in value)
    }
