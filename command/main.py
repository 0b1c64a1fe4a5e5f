"""The command line's main: from words to an exit status."""

import os
import select
import sys
from collections.abc import Sequence
from functools import partial

from command.arguments import perform, read_point
from command.help import answer
from command.outcome import ActionResult, Status, attempt, tell_error
from command.sweep import split_sweep, study_words, submit_all, submits
from components.terminal import console, prepare_streams, tell


def main(words: Sequence[str]) -> Status:
    """Run the command; a reader that has seen enough, such as ``head``, ends it silently."""
    output = os.dup(1)  # rich turns standard output away before it tells of a broken pipe
    try:
        return attempt(lambda: _run(words), words).status
    except (BrokenPipeError, SystemExit) as gone:  # the second is how rich tells
        asked = select.poll()
        asked.register(output, select.POLLOUT)
        if any(event & select.POLLERR for _, event in asked.poll(0)):
            return Status.READER_GONE
        if isinstance(gone, SystemExit):
            raise
        return tell_error(gone, words)  # of any other pipe
    finally:
        os.close(output)
        try:
            sys.stdout.flush()
        except OSError:  # what it does not take is dropped, or Python would try again
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _run(words: Sequence[str]) -> ActionResult:
    """Run every point and return the highest exit status."""
    prepare_streams()
    if (said := answer(words)) is not None:
        tell(said)
        status = Status.DONE
    elif (asked := study_words(words)) is not None:
        from command.study.request import run_study

        status = run_study(asked)
    else:
        sweeping, points = split_sweep(words)
        if not sweeping:
            status = _act(points[0]).status
        else:
            status = submit_all(points) if submits(points) else _sweep(points)
    sys.stdout.flush()
    return ActionResult(status)


def _sweep(points: Sequence[Sequence[str]]) -> Status:
    """Run one point after the other, whatever becomes of those before, until interrupted."""
    outcomes: list[ActionResult] = []
    for point in points:
        outcomes.append(attempt(partial(_act, point), point, " ".join(point)))
        if outcomes[-1].status >= Status.INTERRUPTED:
            break
    if runs := [outcome.run for outcome in outcomes if outcome.run is not None]:
        from components.report.outcome import load_entries
        from components.report.tables import summary_grid, terminal_table

        console(width=160).print(terminal_table(summary_grid(load_entries(runs))))
    return max(outcome.status for outcome in outcomes)


def _act(words: Sequence[str]) -> ActionResult:
    arguments = read_point(words)
    return perform(arguments.action, arguments)
