"""What every scheduler does: submit a script, list jobs, cancel them, avoid nodes.

A job's id is read from a file, which somebody else may have written: it has to have the
scheduler's form, and the job has to be this user's and write where this run's jobs do.
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
    """One job that the scheduler still knows; ``why`` is its reason for not running."""

    job: str
    state: Literal["pending", "running"]
    why: str
    nodes: str


@dataclass(frozen=True, kw_only=True)
class JobPlace:
    """Where this process runs: in which job, for the how manieth time, on which nodes."""

    job: str
    attempt: int
    nodes: tuple[str, ...]


class Scheduler(Protocol):
    """Commands of one scheduler.

    The jobs of a run are those of this user that write into its folder ``logs``, whatever ids
    the run has recorded. A job ``chain`` that the run has recorded, and that is not one of
    these, is refused by `NotOwnError`; an empty text stands for none.
    """

    name: str
    program: str
    launcher: str  # what starts the ranks
    ids: re.Pattern[str]  # what its ids look like
    arrays: bool  # a chain is one array, for whose end another can wait
    excludes: bool  # nodes by their names; else a job asks for more, and leaves them out itself

    def submit(self, script: Path, *, after: str | None) -> str:
        """Hand the script over, to begin when the chain ``after`` has ended, however it did."""

    def states(self, chain: str, logs: Path) -> list[JobState]:
        """List the jobs that wait or run."""

    def cancel(self, chain: str, logs: Path, *, running: bool) -> None:
        """Take back the jobs that wait, and end those that run if asked to."""

    def exclude(self, chain: str, logs: Path, nodes: Sequence[str], *, needed: int) -> bool:
        """Keep the waiting jobs, of ``needed`` nodes, off these alone; False where none can."""

    def able(self, job: str) -> frozenset[str] | None:
        """Name the nodes that a job like this could be given, now or later; None if unknown."""

    def fate(self, job: str) -> Fate:
        """Tell what became of a job that told no end; ``gone`` where nobody knows."""

    def place(self, seen: Mapping[str, str]) -> JobPlace:
        """Read from a job's environment which job this is."""

    def on_each(self, hosts: Path, nodes: int | str, launch: Sequence[str]) -> list[str]:
        """Return the words that start one task on each of a job's ``nodes``.

        ``hosts`` lists them, a line each, in the order of `place`; ``launch`` is what the site
        adds. A task that fails ends no other.
        """


class SchedulerError(Exception):
    """A scheduler's command failed; the message is what it said."""


class NoAnswerError(SchedulerError):
    """A scheduler's command took too long and was ended: nobody knows what it has done."""


class NotOwnError(SchedulerError):
    """A job is another user's, or of another folder."""


def check_id(scheduler: Scheduler, job: str, file: Path) -> None:
    """Refuse what is no id: it would be an option of the scheduler's command.

    Raises:
        RecipeError: naming ``file``.
    """
    if not scheduler.ids.fullmatch(job):
        remedy = "put the file back as it was; the queue itself lists your jobs"
        raise RecipeError(str(file), f"{job!r} is no job id of {scheduler.name}", remedy)


def is_own(job: str, *, user: str, outputs: Collection[Path], logs: Path, known: bool) -> bool:
    """Whether a job is this user's and writes its output into ``logs``.

    Raises:
        NotOwnError: it does not, though a run's record knows it as its own.
    """
    own, places = user_name(), {one.resolve() for one in outputs}
    if user == own and logs.resolve() in places:
        return True
    if known:
        raise NotOwnError(
            f"job {job} is of user {user} and writes into {min(outputs)}; this is user {own}, "
            f"and what is asked for writes into {logs}"
        )
    return False


def user_name() -> str:
    """Return who runs this process, as the system and not its environment says."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # inside a container that does not list its users
        return getpass.getuser()


def check_present(scheduler: Scheduler, script: Path | None) -> None:
    """Refuse a machine on which the scheduler cannot be reached.

    Raises:
        RecipeError: its command is not found; ``script``, if written, is named.
    """
    program = scheduler.program
    if shutil.which(program) is None:
        remedy = "run this on a login node of the cluster"
        if script is not None:
            remedy += f"; the job script is {script}, and is submitted by: {program} it"
        problem = f"{program} is not found: no {scheduler.name} here"
        raise RecipeError("cluster.scheduler", problem, remedy)
