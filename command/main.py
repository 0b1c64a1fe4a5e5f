"""Main function of the command line: from words to an exit status."""

import os
import select
import sys
from collections.abc import Sequence

from command.completion import print_completions
from command.hydra_words import completion_query, plain_words
from command.outcome import ActionResult, Status, call_and_report, tell_error
from components.terminal import prepare_streams


def main(words: Sequence[str]) -> Status:
    """Run the command. A closed output pipe, as from ``head``, ends it silently."""
    output = os.dup(1)  # rich redirects standard output before it reports a broken pipe
    try:
        return call_and_report(lambda: _run(words), words).status
    except (BrokenPipeError, SystemExit) as gone:  # rich raises SystemExit
        poller = select.poll()
        poller.register(output, select.POLLOUT)
        if any(event & select.POLLERR for _, event in poller.poll(0)):
            return Status.READER_GONE
        if isinstance(gone, SystemExit):
            raise
        return tell_error(gone, words)  # of any other pipe
    finally:
        os.close(output)
        try:
            sys.stdout.flush()
        except OSError:  # drop unwritten output, or Python would retry at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _run(words: Sequence[str]) -> ActionResult:
    """Run the command's words after translating Hydra's, and return the highest exit status."""
    prepare_streams()
    status = Status.DONE
    if (query := completion_query(words)) is not None:
        print_completions(query)
    else:
        from command.dispatch import dispatch_command  # slow: Hydra

        status = dispatch_command(plain_words(words))
    sys.stdout.flush()
    return ActionResult(status)
