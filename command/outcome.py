"""Outcomes of a command: exit statuses, results of actions, and error messages.

Errors that a user can fix are printed as they are. Details of internal faults are saved to a
file, without environment variables, because users send the file with a report.
"""

import errno
import os
import platform
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from importlib.metadata import PackageNotFoundError, version
from io import IOBase
from pathlib import Path

from components.errors import NO_MEMORY, RecipeError
from components.json_file import dump_json
from components.terminal import log_line, print_output, say_bytes

PACKAGES = ("torch", "lightning", "deepspeed", "hydra-core", "pydantic", "numpy")
MOST_CHARACTERS = 400  # of an exception's text in the message; the file has the full text
FILE_SYSTEM = "ask the administrator of that file system"
MEMORY = "use smaller sizes, or raise the memory limit: ulimit -v, or the job's memory"
NO_MEMORY_LEFT = f"this machine: no memory is left\n  {MEMORY}\n".encode()
FIXES = {
    "raise the limit of open files: ulimit -n 1024, or ask your site": "EMFILE ENFILE",
    "free disk space there, or choose another path": "ENOSPC EDQUOT",
    "choose a path that you may write to": "EACCES EPERM EROFS",
    "check the path": "ENOENT EEXIST ENOTEMPTY ENOTDIR EISDIR ELOOP ENAMETOOLONG",
    "raise the file size limit: ulimit -f": "EFBIG",
    "raise the limit of processes: ulimit -u, or ask your site": "EAGAIN",
    FILE_SYSTEM: "EIO ESTALE",
}
REMEDIES = {getattr(errno, name): fix for fix, names in FIXES.items() for name in names.split()}


class Status(IntEnum):
    """Exit statuses; under ``-m`` the highest of all points."""

    DONE = 0
    DOES_NOT_HOLD = 1
    WRONG_INPUT = 2
    STOPPED = 3
    FAULT = 4
    INTERRUPTED = 130
    READER_GONE = 141  # the shell's status for a program ended by SIGPIPE
    TERMINATED = 143


@dataclass(frozen=True)
class ActionResult:
    """The status of one point, its run folder, if any, and the reason for a failure."""

    status: Status = Status.DONE
    run: Path | None = None
    why: str = ""


OUT_OF_MEMORY = ActionResult(Status.WRONG_INPUT, why="no memory is left")


def print_result(output: str, tree: object, show: Callable[[], None]) -> None:
    """Print JSON for ``output=json``, with null for non-finite numbers; else call ``show``."""
    if output == "json":
        print_output(dump_json(tree))
    else:
        show()


def call_and_report(
    act: Callable[[], ActionResult], words: Sequence[str], label: str = ""
) -> ActionResult:
    """Call ``act`` and report any exception on standard error, except BrokenPipeError."""
    try:
        return act()
    except BrokenPipeError:
        raise
    except KeyboardInterrupt as stopped:
        return ActionResult(_tell_stopped(stopped))
    except Exception as error:  # noqa: BLE001 (the one handler for all unforeseen errors)
        try:
            for cause in _chain(error):
                if isinstance(cause, KeyboardInterrupt):
                    return ActionResult(_tell_stopped(cause))
            status, text = describe_error(error, words)
            _say(f"[{label}] {text}" if label else text)
            return ActionResult(status, why=text.partition("\n")[0])
        except MemoryError:
            with suppress(OSError):
                say_bytes(NO_MEMORY_LEFT)
            return OUT_OF_MEMORY


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes: libraries wrap a KeyboardInterrupt in their own errors."""
    visited = set[int]()
    while error is not None and id(error) not in visited:
        yield error
        visited.add(id(error))
        error = error.__cause__ or error.__context__


def _tell_stopped(stopped: KeyboardInterrupt) -> Status:
    _say("stopped; incomplete files were removed")
    number = getattr(stopped, "number", signal.SIGINT)  # Python's own has no number
    return Status(128 + number)


def tell_error(error: Exception, words: Sequence[str]) -> Status:
    """Print an error, and return its status."""
    status, text = describe_error(error, words)
    _say(text)
    return status


def describe_error(error: Exception, words: Sequence[str]) -> tuple[Status, str]:
    """Return an error's status and message: wrong input, or a fault of the program."""
    if not isinstance(error, RecipeError) and any(
        NO_MEMORY.search(repr(cause)) for cause in _chain(error)
    ):
        error = RecipeError("this machine", _problem("no memory is left", error), MEMORY)
    if isinstance(error, OSError) and (error.errno in REMEDIES or error.filename is not None):
        target = None if error.errno == errno.ENOENT else error.filename2  # of a copy
        place = str(target or error.filename or _open_file(error) or "this machine")
        remedy = REMEDIES.get(error.errno or 0, FILE_SYSTEM)
        error = RecipeError(place, error.strerror or str(error), remedy)
    if isinstance(error, RecipeError):
        return Status.WRONG_INPUT, str(error)
    kind = _problem(type(error).__name__, error)
    command = f"command: python run.py {shlex.join(words)}"
    lines = [f"internal error, not caused by your input: {kind}", command]
    details = _details(error, command)
    file = _keep(details)
    lines.append(f"details: {file}; please report it with the error" if file else details)
    return Status.FAULT, "\n  ".join(lines)


def _open_file(error: OSError) -> str | None:
    """Return the name of the file in use: Python reports it only if opening fails."""
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)]
    files = [value for local in frames for value in local.values() if isinstance(value, IOBase)]
    names = [getattr(file, "name", None) for file in files]
    return next((name for name in reversed(names) if isinstance(name, str)), None)


def _problem(kind: str, error: Exception) -> str:
    text = " ".join(str(error).split())[:MOST_CHARACTERS]
    return f"{kind}: {text}" if text else kind


def _details(error: Exception, command_line: str) -> str:
    """Return a fault's details for debugging, without environment variables (secrets)."""
    try:
        folder = str(Path.cwd())
    except OSError as gone:
        folder = f"a deleted folder ({gone.strerror})"
    return "\n".join([
        command_line,
        f"in: {folder}",
        f"at: {datetime.now(UTC).isoformat(timespec='seconds')}",
        f"python: {sys.version.split()[0]} on {platform.platform()}",
        f"packages: {', '.join(f'{package} {version_of(package)}' for package in PACKAGES)}",
        "",
        "".join(traceback.format_exception(error)),
    ])


def version_of(package: str) -> str:
    """Return the installed version of a package without importing it."""
    try:
        return version(package)
    except (PackageNotFoundError, OSError):
        return "unknown"


def _keep(details: str) -> Path | None:
    """Save the details to a file and return its path; None if no folder is writable."""
    name = f"{datetime.now(UTC):%Y-%m-%dT%H%M%S.%f}-{os.getpid()}.txt"
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    for place in (Path(state, "kochbuch", "faults"), None):
        try:
            folder = Path(tempfile.mkdtemp()) if place is None else place.expanduser()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = folder / name
            file.touch(mode=0o600, exist_ok=False)
            file.write_text(details, "utf-8", errors="backslashreplace")
        except (OSError, RuntimeError):  # RuntimeError: the home folder is unknown
            continue
        return file
    return None


def _say(text: str) -> None:
    """Print to standard error, which may be closed."""
    with suppress(OSError):
        log_line(text)
