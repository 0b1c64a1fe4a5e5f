"""The command line's main: from words to an exit status."""

import os
import select
import sys
from collections.abc import Sequence
from functools import partial

from command.arguments import perform, read_point
from command.help import answer
from command.hydra_words import plain_words
from command.outcome import ActionResult, Status, attempt, tell_error
from command.sweep import split_sweep, study_words, submits, trains
from command.sweep_runs import submit_all, train_all
from components.terminal import prepare_streams, tell


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
    status = Status.DONE
    if (plain := plain_words(words)) is None:
        pass  # a word of Hydra's has been answered
    elif (said := answer(plain)) is not None:
        tell(said)
    elif (asked := study_words(plain)) is not None:
        from command.study.request import run_study

        status = run_study(asked)
    else:
        status = _run_points(*split_sweep(plain))
    sys.stdout.flush()
    return ActionResult(status)


def _run_points(sweeping: bool, points: Sequence[Sequence[str]]) -> Status:
    if not sweeping:
        return _act(points[0]).status
    if submits(points):
        return submit_all(points)
    return train_all(points) if trains(points) else _sweep(points)


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
