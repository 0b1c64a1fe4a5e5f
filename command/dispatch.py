"""Dispatch the command's words: help, a study, one point, or the points of a sweep."""

from collections.abc import Sequence
from functools import partial

from command.arguments import read_point
from command.help import find_help
from command.outcome import ActionResult, Status, call_and_report
from command.perform import run_action
from command.study.sweep_points import STUDY, is_study, is_submitted, split_sweep
from command.words import SWEEP, check_renamed
from components.terminal import print_output


def dispatch_command(words: Sequence[str]) -> Status:
    """Run the command, and return the highest exit status."""
    check_renamed(words)
    if (reply := find_help(words)) is not None:
        print_output(reply)
        return Status.DONE
    if SWEEP in words and any(word.startswith(STUDY) for word in words):
        from command.study.listed import run_study  # slow: numpy and tokenizers

        return run_study([word for word in words if word != SWEEP])
    sweeping, points = split_sweep(words)
    if not sweeping:
        return _act(points[0]).status
    if not (is_submitted(points) or is_study(points)):
        return _act_on_each(points)
    from command.study.listed import run_sweep  # slow: numpy and tokenizers

    return run_sweep(points)


def _act_on_each(points: Sequence[Sequence[str]]) -> Status:
    """Run one point after the other, despite failures, until interrupted."""
    statuses: list[Status] = []
    for point in points:
        statuses.append(call_and_report(partial(_act, point), point, " ".join(point)).status)
        if statuses[-1] >= Status.INTERRUPTED:
            break
    return max(statuses)


def _act(words: Sequence[str]) -> ActionResult:
    arguments = read_point(words)
    return run_action(arguments.action, arguments)
