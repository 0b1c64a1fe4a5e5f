"""The command line's main: from words to an exit status."""

import os
import select
import sys
from collections.abc import Sequence

from command.completion import answer
from command.hydra_words import completion_query, plain_words
from command.outcome import ActionResult, Status, attempt, tell_error
from components.terminal import prepare_streams


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
    """Do what is asked, in the words of this command, and return the highest exit status."""
    prepare_streams()
    status = Status.DONE
    if (query := completion_query(words)) is not None:
        answer(query)
    else:
        from command.dispatch import dispatch  # slow: Hydra

        status = dispatch(plain_words(words))
    sys.stdout.flush()
    return ActionResult(status)
