"""Run a scheduler's commands. Errors and missing commands become one-line messages."""

import os
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from cluster.scheduler import NoAnswerError, SchedulerError
from components.child_process import tool_environment

ANSWERS_WITHIN_SECONDS = 60
_answers: ContextVar[dict[tuple[str, ...], str | SchedulerError] | None] = ContextVar(
    "answers", default=None
)


@contextmanager
def cached_answers() -> Iterator[None]:
    """Cache command outputs in this block. Run no further command after a timeout."""
    outer = _answers.get()  # cache of an enclosing block
    token = _answers.set({} if outer is None else outer)
    try:
        yield
    finally:
        _answers.reset(token)


def run_command(words: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Return the output of a command. ``environment`` defaults to this process's."""
    if (answers := _answers.get()) is None:
        return _run(words, environment)
    timeouts = [answer for answer in answers.values() if isinstance(answer, NoAnswerError)]
    if (key := tuple(words)) not in answers:
        try:
            answers[key] = timeouts[0] if timeouts else _run(words, environment)
        except SchedulerError as error:
            answers[key] = error
    if isinstance(answer := answers[key], SchedulerError):
        raise answer
    return answer


def _run(words: Sequence[str], environment: Mapping[str, str] | None) -> str:
    try:
        done = subprocess.run(
            words,
            env=tool_environment(os.environ if environment is None else environment),
            capture_output=True,
            text=True,
            check=True,
            timeout=ANSWERS_WITHIN_SECONDS,
        )
    except subprocess.CalledProcessError as error:
        output = " ".join(str(error.stderr or error.stdout).split())
        raise SchedulerError(f"{words[0]}: {output}") from None
    except FileNotFoundError:
        raise SchedulerError(f"{words[0]} is not found on {socket.gethostname()}") from None
    except subprocess.TimeoutExpired as error:
        raise NoAnswerError(f"{words[0]}: no answer within {error.timeout} s") from None
    return done.stdout


def run_command_or_none(words: Sequence[str], gone: Sequence[str]) -> str | None:
    """Run a command; return None if its error contains a string in ``gone``: the job ended."""
    try:
        return run_command(words)
    except SchedulerError as error:
        if any(word in str(error) for word in gone):
            return None
        raise
