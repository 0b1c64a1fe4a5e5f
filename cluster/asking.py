"""Ask a scheduler by its own commands; what it refuses, and a missing command, in one line."""

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
def asked_once() -> Iterator[None]:
    """Ask each question once in this block, and none after one that was not answered."""
    if _answers.get() is not None:  # within such a block
        yield
        return
    token = _answers.set({})
    try:
        yield
    finally:
        _answers.reset(token)


def ask(words: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a scheduler's command and return what it prints; None: in this environment."""
    if (answers := _answers.get()) is None:
        return _run(words, environment)
    silent = [one for one in answers.values() if isinstance(one, NoAnswerError)]
    if (key := tuple(words)) not in answers:
        try:
            answers[key] = silent[0] if silent else _run(words, environment)
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
        said = " ".join(str(error.stderr or error.stdout).split())
        raise SchedulerError(f"{words[0]}: {said}") from None
    except FileNotFoundError:
        raise SchedulerError(f"{words[0]} is not found on {socket.gethostname()}") from None
    except subprocess.TimeoutExpired as error:
        raise NoAnswerError(f"{words[0]}: no answer within {error.timeout} s") from None
    return done.stdout


def ask_unless_gone(words: Sequence[str], gone: Sequence[str]) -> str | None:
    """Ask; None if a word of ``gone`` is in the refusal: the jobs have ended meanwhile."""
    try:
        return ask(words)
    except SchedulerError as error:
        if any(word in str(error) for word in gone):
            return None
        raise
