"""Interface of all schedulers: submit a script, list and cancel jobs, avoid nodes.

A job id is read from a file that another user may have written. The id must have the
scheduler's format, and the job must belong to this user and write to this run's log folder.
"""

import getpass
import os
import pwd
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from cluster.chain import Fate
from components.errors import RecipeError


@dataclass(frozen=True, kw_only=True)
class JobState:
    """State of a queued or running job. ``why`` is the scheduler's reason for a wait."""

    job: str
    state: Literal["pending", "running"]
    why: str
    nodes: str


@dataclass(frozen=True, kw_only=True)
class JobPlace:
    """Job id, attempt number and nodes of the job in which this process runs."""

    job: str
    attempt: int
    nodes: tuple[str, ...]


class Scheduler(Protocol):
    """Commands of one scheduler.

    A run's jobs are this user's jobs that write to the run's folder ``logs``, whatever ids the
    run has recorded. ``chain`` is a recorded job id, or an empty string. If that job is in the
    queue but is not one of the run's jobs, `NotOwnError` is raised.
    """

    name: str
    program: str
    launcher: str  # program that starts the ranks
    ids: re.Pattern[str]  # format of job ids
    arrays: bool  # a chain is one array, and another job can wait for its end
    excludes: bool  # can exclude nodes by name; else a job requests more nodes and skips some

    def submit_script(self, script: Path, *, after: str | None) -> str:
        """Submit the script. It starts after the chain ``after`` has ended with any status."""

    def list_jobs(self, chain: str, logs: Path) -> list[JobState]:
        """Return the jobs that wait or run."""

    def cancel_jobs(self, chain: str, logs: Path, *, running: bool) -> None:
        """Cancel the waiting jobs, and also the running jobs if ``running`` is true."""

    def exclude_nodes(
        self, chain: str, logs: Path, nodes: Sequence[str], *, needed: int
    ) -> bool:
        """Set the nodes that waiting jobs of ``needed`` nodes avoid; False if not supported.

        The new set replaces the old one.
        """

    def find_eligible_nodes(self, job: str) -> frozenset[str] | None:
        """Return the nodes that could be allocated to such a job; None if unknown."""

    def find_exit_reason(self, job: str) -> Fate:
        """Return how a job without a recorded end ended; ``gone`` if unknown."""

    def read_job_place(self, seen: Mapping[str, str]) -> JobPlace:
        """Read the job's id, attempt and nodes from its environment ``seen``."""

    def on_each(self, hosts: Path, nodes: int | str, launch: Sequence[str]) -> list[str]:
        """Return the words that start one task on each of a job's ``nodes``.

        The file ``hosts`` lists the nodes, one per line, in the order of `read_job_place`.
        ``launch`` contains the site's options. A failing task does not end the others.
        """


class SchedulerError(Exception):
    """A scheduler's command failed; the message is the command's output."""


class NoAnswerError(SchedulerError):
    """A scheduler's command timed out and was killed. Its effect is unknown."""


class NotOwnError(SchedulerError):
    """A job belongs to another user or writes to another folder."""


def check_id(scheduler: Scheduler, job: str, file: Path) -> None:
    """Raise a RecipeError on an invalid job id, which a command could take for an option."""
    if not scheduler.ids.fullmatch(job):
        remedy = "restore the file; the queue lists your jobs"
        raise RecipeError(str(file), f"{job!r} is not a job id of {scheduler.name}", remedy)


def is_own(job: str, *, user: str, outputs: Collection[Path], logs: Path, known: bool) -> bool:
    """Whether a job belongs to this user and writes its output to ``logs``.

    Raises:
        NotOwnError: the job does not, but it is ``known``: the run has recorded its id.
    """
    current_user, folders = user_name(), {output.resolve() for output in outputs}
    if user == current_user and logs.resolve() in folders:
        return True
    if known:
        raise NotOwnError(
            f"job {job} belongs to user {user} and writes into {min(outputs)}; expected user "
            f"{current_user} and folder {logs}"
        )
    return False


def user_name() -> str:
    """Return this process's user name from the password database, not the environment."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # inside a container without an entry for the user
        return getpass.getuser()


def short_name(node: str) -> str:
    """Return a node's name without its domain. Preflight uses short names, PBS full ones."""
    return node.partition(".")[0]


def check_present(scheduler: Scheduler, script: Path | None) -> None:
    """Raise a RecipeError if the scheduler's program is not found; name ``script`` if given."""
    program = scheduler.program
    if shutil.which(program) is None:
        remedy = "run this on a login node of the cluster"
        if script is not None:
            remedy += f"; submit the job script with: {program} {script}"
        problem = f"{program} is not found; {scheduler.name} is not available here"
        raise RecipeError("cluster.scheduler", problem, remedy)
