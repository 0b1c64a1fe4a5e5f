"""From the words of the command line to an exit status."""

import importlib
import logging
import sys
from collections.abc import Sequence

from command.arguments import Arguments, read_point
from command.listing import list_recipes
from command.outcome import Outcome, Status
from command.points import split_sweep, study_words, submits
from components.errors import RecipeError


def main(words: Sequence[str]) -> int:
    """Run every point and return the highest exit status."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
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
        sys.stderr.write("stopped; nothing half-written was kept\n")
        return Outcome(Status.STOPPED)


def _act(arguments: Arguments) -> Outcome:
    outcome = importlib.import_module(f"command.actions.{arguments.action}").run(arguments)
    assert isinstance(outcome, Outcome)
    return outcome


def _report(error: RecipeError, label: str) -> Status:
    where = f"[{label}] " if label else ""
    sys.stderr.write(f"{where}{error}\n")
    return Status.WRONG_INPUT


def _print_table(outcomes: Sequence[Outcome]) -> None:
    runs = [outcome.run for outcome in outcomes if outcome.run is not None]
    if not runs:
        return
    from rich.console import Console

    from components.report.tables import summary_table

    Console(width=160 if not sys.stdout.isatty() else None).print(summary_table(runs))
