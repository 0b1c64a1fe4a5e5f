"""Dispatch: a word about the command itself, a study, one point, or the points of a sweep."""

from collections.abc import Sequence
from functools import partial

from command.arguments import read_point
from command.help import answer
from command.outcome import ActionResult, Status, attempt
from command.perform import perform
from command.study.sweep_points import split_sweep, study_words, submits, trains
from command.words import check_renamed
from components.terminal import tell


def dispatch(words: Sequence[str]) -> Status:
    """Do what is asked, and return the highest exit status.

    Raises:
        RecipeError: a word is wrong; of a sweep one that all its points have.
    """
    check_renamed(words)
    if (said := answer(words)) is not None:
        tell(said)
        return Status.DONE
    if (asked := study_words(words)) is not None:
        from command.study.listed import run_study  # slow: numpy and tokenizers

        return run_study(asked)
    sweeping, points = split_sweep(words)
    if not sweeping:
        return _act(points[0]).status
    to_scheduler = submits(points)
    if not (to_scheduler or trains(points)):
        return _sweep(points)
    from command.study.sweep import submit_all, train_all  # slow: numpy and tokenizers

    return submit_all(points) if to_scheduler else train_all(points)


def _sweep(points: Sequence[Sequence[str]]) -> Status:
    """Act on one point after the other, whatever becomes of those before, until interrupted."""
    statuses: list[Status] = []
    for point in points:
        statuses.append(attempt(partial(_act, point), point, " ".join(point)).status)
        if statuses[-1] >= Status.INTERRUPTED:
            break
    return max(statuses)


def _act(words: Sequence[str]) -> ActionResult:
    arguments = read_point(words)
    return perform(arguments.action, arguments)
