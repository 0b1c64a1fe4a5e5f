"""From the words of the command line to an exit status."""

import importlib
import os
import select
import sys
from collections.abc import Sequence

from command.arguments import Arguments, read_point
from command.listing import list_recipes
from command.outcome import Outcome, Status
from command.points import split_sweep, study_words, submits
from command.words import check_words, keys_of
from components.errors import RecipeError
from components.terminal import console, prepare_streams, say

READER_GONE = 141  # what a shell reports of a program that SIGPIPE ended


def main(words: Sequence[str]) -> int:
    """Run the command; a reader that has seen enough, such as ``head``, ends it silently."""
    output = os.dup(1)  # rich turns standard output away before it tells of a broken pipe
    try:
        status = _run(words)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # the second is how rich tells
        if not _is_broken(output):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return READER_GONE
    finally:
        os.close(output)
    return status


def _is_broken(output: int) -> bool:
    """Tell a closed standard output from any other pipe."""
    asked = select.poll()
    asked.register(output, select.POLLOUT)
    return any(event & select.POLLERR for _, event in asked.poll(0))


def _run(words: Sequence[str]) -> int:
    """Run every point and return the highest exit status."""
    prepare_streams()
    if not words or set(words) <= {"-h", "--help"}:
        list_recipes()
        return Status.DONE
    try:
        if (asked := study_words(words)) is not None:
            from command.study import run_study  # imports Optuna

            return run_study(asked)
        sweeping, points = split_sweep(words)
        if sweeping and submits(points):
            from command.sweep import submit_all  # imports torch

            return submit_all(points)
    except RecipeError as error:
        return _report(error, "")
    outcomes = [_run_point(point, " ".join(point) if sweeping else "") for point in points]
    if sweeping:
        _print_table(outcomes)
    return max(outcome.status for outcome in outcomes)


def _run_point(words: Sequence[str], label: str) -> Outcome:
    try:
        arguments = read_point(words)
        return _act(arguments)
    except RecipeError as error:
        return Outcome(_report(error, label))
    except KeyboardInterrupt:
        say("stopped; nothing half-written was kept")
        return Outcome(Status.STOPPED)


def _act(arguments: Arguments) -> Outcome:
    check_words(arguments.action, keys_of(arguments.words))
    outcome = importlib.import_module(f"command.actions.{arguments.action}").run(arguments)
    assert isinstance(outcome, Outcome)
    return outcome


def _report(error: RecipeError, label: str) -> Status:
    where = f"[{label}] " if label else ""
    say(f"{where}{error}")
    return Status.WRONG_INPUT


def _print_table(outcomes: Sequence[Outcome]) -> None:
    runs = [outcome.run for outcome in outcomes if outcome.run is not None]
    if not runs:
        return
    from components.report.tables import summary_table

    console(width=160).print(summary_table(runs))
