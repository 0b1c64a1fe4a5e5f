"""Who makes the runs of a study's points: the planner, this machine, or a batch cluster."""

import sys
from contextlib import redirect_stdout

from command.actions import auto
from command.arguments import Arguments, read_point
from command.outcome import Status
from command.study_asked import Asked
from command.study_runs import Planned, Runner, Trained
from components.errors import RecipeError
from components.spec.study_listed import Listed
from components.spec.study_searched import Searched


def runner_of(asked: Asked) -> Runner:
    """Choose by the action.

    Raises:
        RecipeError: plans are asked for, and none knows what the study compares.
    """
    key = asked.study.objective.measured
    if asked.action == "plan":
        return Planned(ask=asked.arguments_of, key=planned_key(asked.study))
    if asked.action == "train":
        return Trained(ask=asked.arguments_of, folder=asked.folder_of, key=key, train=_train)
    from command.study_queue import Submitted  # imports torch

    return Submitted(ask=asked.arguments_of, folder=asked.folder_of, key=key)


def planned_key(study: Searched | Listed) -> str:
    """Name what a plan calls that which the study compares.

    Raises:
        RecipeError: no plan knows it.
    """
    if study.objective.planned is None:
        remedy = "run it: leave action=plan out"
        raise RecipeError("action", f"no plan knows {study.objective.measured}", remedy)
    return study.objective.planned


def _train(arguments: Arguments) -> None:
    """Train a point, or go on with it; who interrupts a run interrupts the study."""
    folder = arguments.folders["run"]
    if folder.exists():
        arguments = read_point([f"resume={folder}"])
    with redirect_stdout(sys.stderr):  # standard output is the study's
        ended = auto.run(arguments)
    if ended.status in {Status.STOPPED, Status.INTERRUPTED}:
        raise KeyboardInterrupt
