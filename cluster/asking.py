"""Ask a scheduler by its own commands; what it refuses, and a missing command, in one line."""

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence

from cluster.scheduler import NoAnswerError, SchedulerError
from components.child_process import tool_environment

ANSWERS_WITHIN_SECONDS = 60


def ask(words: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a scheduler's command and return what it prints; None: in this environment."""
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
