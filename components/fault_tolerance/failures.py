"""Error files of failed ranks, and the choice of the root cause among them."""

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from components.errors import RecipeError
from components.json_file import open_regular, parse_json

WAITING = "waits for other ranks in "  # in the message of a rank that hangs in a collective
_BROUGHT_DOWN = re.compile(
    r"Connection closed|Connection reset|Broken pipe|ncclRemoteError|remote process exited|"
    rf"{WAITING}"
)

# Start of an error file by torch's ``record``, up to the end of the message or of the file.
_MESSAGE_BEGUN = re.compile(
    r'\s*\{"message": (?:\{"message": )?"(?P<text>(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\["\\/bfnrt])*)'
)
CUT_SHORT = "wrote an error file without a message: is the disk full?"
MOST_ERROR_BYTES, MOST_MESSAGE, READERS = 1 << 20, 10_000, 32

FIRST_FAILURE = "first_failure.json"  # in the run's folder ``ranks``, written by the agent

# Exit status of a rank with a user error that it could not write to a file, and of its agent.
MENDABLE = 2


@dataclass(frozen=True)
class RankError:
    """Error of a rank, and its time ``at`` in nanoseconds since the epoch."""

    rank: int
    message: str
    at: int

    @property
    def is_own(self) -> bool:
        """Whether the error is more than a lost connection to, or a wait for, another rank."""
        return self.message != CUT_SHORT and not _BROUGHT_DOWN.search(self.message)


def error_file(ranks: Path, rank: int) -> Path:
    """Return the path of a rank's error file in the run's folder ``ranks``."""
    return ranks / f"error-{rank}.json"


def read_errors(ranks: Path) -> list[RankError]:
    """Read all error files. Errors with a cause of their own come first, then by time."""

    def read_rank_error(entry: tuple[int, Path]) -> RankError | None:
        rank, file = entry
        try:
            return RankError(rank, read_error(file)[0], file.stat().st_mtime_ns)
        except OSError:  # removed in the meantime, or not readable
            return None

    with ThreadPoolExecutor(READERS) as pool:  # a shared file system has high latency
        errors = [
            error
            for error in pool.map(read_rank_error, _error_files(ranks))
            if error is not None
        ]
    return sorted(errors, key=lambda error: (not error.is_own, error.at))


def forget_errors(ranks: Path) -> None:
    """Remove all error files, after their contents were reported."""
    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(lambda entry: entry[1].unlink(missing_ok=True), _error_files(ranks)))


def _error_files(ranks: Path) -> Iterator[tuple[int, Path]]:
    for file in ranks.glob("error-*.json"):
        rank = file.stem.removeprefix("error-")
        if rank.isdecimal() and not file.is_dir():
            yield int(rank), file


def read_error(file: Path) -> tuple[str, str]:
    """Read the message and the traceback that torch's ``record`` wrote.

    A full disk truncates the file. Then the rest of the message is returned, or `CUT_SHORT` if
    nothing of it is left. May raise OSError.
    """
    try:
        with open_regular(file) as stream:
            raw = stream.read(MOST_ERROR_BYTES)
    except ValueError as error:
        return f"{file} {error}", ""
    traceback = ""
    try:
        tree = parse_json(raw, finite=False)["message"]
        if isinstance(tree, dict):
            traceback = str(tree.get("extraInfo", {}).get("py_callstack", ""))
            tree = tree["message"]
        message = str(tree)
    except (ValueError, KeyError, TypeError, AttributeError):
        message = _message_begun(raw.decode(errors="replace"))
    return message[:MOST_MESSAGE].encode(errors="replace").decode() or CUT_SHORT, traceback


def _message_begun(text: str) -> str:
    """Return the available part of the message in a truncated file."""
    if (match := _MESSAGE_BEGUN.match(text)) is None:
        return ""
    return str(json.loads(f'"{match["text"]}"', strict=False))


def seconds_between(errors: Sequence[RankError], file: Path) -> float:
    """Return the seconds from the first error to the last change of ``file``; 0 without errors.

    Both times come from the clock of the file system. This machine's clock may differ.
    """
    end = file.stat().st_mtime_ns
    return max(0.0, (end - min((error.at for error in errors), default=end)) / 1e9)


def describe_end(errors: Sequence[RankError], *, ranks: int) -> tuple[str, list[int]]:
    """Describe why a run of ``ranks`` ended, and list the ranks without an error file.

    A rank that was killed, or that its launcher ended, writes no file. If all errors are lost
    connections, the cause is among the ranks without a file.
    """
    silent = sorted(set(range(ranks)) - {error.rank for error in errors})
    if not errors:
        return "no rank reported an error", silent
    first = errors[0]
    why = f"rank {first.rank}: {first.message}"
    if silent and not first.is_own:
        why = f"rank {', '.join(map(str, silent))} left no message; {why}"
    return why, silent


def raise_again(ranks: Path) -> None:
    """Raise the error that ended the ranks before this restart, if it is a user error."""
    errors = read_errors(ranks)
    if errors and (error := recipe_error(errors[0].message)):
        raise error


def recipe_error(message: str) -> RecipeError | None:
    """Parse a RecipeError from the text of torch's ``record``; None for other errors."""
    kind, _, text = message.partition(": ")
    if kind != RecipeError.__name__:
        return None
    path, _, rest = text.partition(": ")
    problem, _, remedy = rest.partition("\n  ")
    return RecipeError(path, problem, remedy)
