"""How a command ends: exit statuses, results of actions, and what is said of a fault.

What a user can mend is said as it is. Of faults of this program the details are kept in a
file, without environment variables: somebody will send it to somebody.
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
from components.terminal import say, say_bytes, tell

PACKAGES = ("torch", "lightning", "deepspeed", "hydra-core", "pydantic", "numpy")
MOST_CHARACTERS = 400  # of an exception's text in the message; the file has all of it
FILES = "the limit of open files is too low here: ulimit -n 1024, or ask the site"
ROOM = "make room there, or name another place"
RIGHTS = "name a place that you may use"
FILE_SYSTEM = "ask who runs that file system"
MEMORY = "use smaller sizes, or raise the limit: ulimit -v, or the memory of the job"
NO_MEMORY_LEFT = f"this machine: no memory is left\n  {MEMORY}\n".encode()
REMEDIES = {
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), FILES),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), ROOM),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), RIGHTS),
    errno.EFBIG: "raise the limit of a file's size: ulimit -f",
    errno.ENOENT: "check the path",
    errno.EEXIST: "check the path: a file is where a folder has to be",
    errno.ENOTEMPTY: "another process has written it: use that, or name another place",
    errno.ENOTDIR: "check the path: a part of it is a file, no folder",
    errno.EISDIR: "name a file",
    errno.ELOOP: "check the path: its links lead in a circle",
    **dict.fromkeys((errno.EIO, errno.ESTALE), FILE_SYSTEM),
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.EAGAIN: "the limit of processes is too low here: ulimit -u, or ask the site",
}


class Status(IntEnum):
    """Exit statuses; under ``-m`` the highest of all points."""

    DONE = 0
    DOES_NOT_HOLD = 1
    WRONG_INPUT = 2
    STOPPED = 3
    FAULT = 4
    INTERRUPTED = 130
    READER_GONE = 141  # what a shell reports of a program that SIGPIPE ended
    TERMINATED = 143


@dataclass(frozen=True)
class ActionResult:
    """How one point ended, and the run folder that it left, if any."""

    status: Status = Status.DONE
    run: Path | None = None


OUT_OF_MEMORY = ActionResult(Status.WRONG_INPUT)


def print_result(output: str, tree: object, show: Callable[[], None]) -> None:
    """Print one JSON object where ``output=json`` asks for it, else what ``show`` prints.

    Numbers that are not finite are null.
    """
    if output == "json":
        tell(dump_json(tree))
    else:
        show()


def attempt(
    act: Callable[[], ActionResult], words: Sequence[str], label: str = ""
) -> ActionResult:
    """Do what ``words`` ask for; whatever is raised is told on standard error.

    Raises:
        BrokenPipeError: the reader of standard output may have gone, which the caller knows.
    """
    try:
        return act()
    except BrokenPipeError:
        raise
    except KeyboardInterrupt as stopped:
        return ActionResult(_tell_stopped(stopped))
    except Exception as error:  # noqa: BLE001 (the one place below which nothing is unforeseen)
        try:
            for cause in _chain(error):
                if isinstance(cause, KeyboardInterrupt):
                    return ActionResult(_tell_stopped(cause))
            return ActionResult(tell_error(error, words, label))
        except MemoryError:
            with suppress(OSError):
                say_bytes(NO_MEMORY_LEFT)
            return OUT_OF_MEMORY


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Follow an error to what it was made of: libraries call all that they catch a failure."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


def _tell_stopped(stopped: KeyboardInterrupt) -> Status:
    _say("stopped; nothing half-written was kept")
    number = getattr(stopped, "number", signal.SIGINT)  # Python's own knows none
    return Status(128 + number)


def tell_error(error: Exception, words: Sequence[str], label: str = "") -> Status:
    """Describe what went wrong, and whose it is: wrong input, or a fault of the program."""
    where = f"[{label}] " if label else ""
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
        _say(f"{where}{error}")
        return Status.WRONG_INPUT
    kind = _problem(type(error).__name__, error)
    asked = f"asked: python run.py {shlex.join(words)}"
    lines = [f"{where}a fault of this program, not of your input: {kind}", asked]
    details = _details(error, asked)
    kept = _keep(details)
    lines.append(f"details: {kept}; please report it with that file" if kept else details)
    _say("\n  ".join(lines))
    return Status.FAULT


def _open_file(error: OSError) -> str | None:
    """Name the file that was read or written: Python names it only where opening fails."""
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)]
    files = [value for local in frames for value in local.values() if isinstance(value, IOBase)]
    names = [getattr(file, "name", None) for file in files]
    return next((name for name in reversed(names) if isinstance(name, str)), None)


def _problem(kind: str, error: Exception) -> str:
    text = " ".join(str(error).split())[:MOST_CHARACTERS]
    return f"{kind}: {text}" if text else kind


def _details(error: Exception, asked: str) -> str:
    """Tell who debugs it what happened where; no environment variables, which hold secrets."""
    try:
        folder = str(Path.cwd())
    except OSError as gone:
        folder = f"a folder that is gone ({gone.strerror})"
    return "\n".join([
        asked,
        f"in: {folder}",
        f"at: {datetime.now(UTC).isoformat(timespec='seconds')}",
        f"python: {sys.version.split()[0]} on {platform.platform()}",
        f"packages: {', '.join(f'{package} {version_of(package)}' for package in PACKAGES)}",
        "",
        "".join(traceback.format_exception(error)),
    ])


def version_of(package: str) -> str:
    """Ask which release of a package is installed; nothing is imported."""
    try:
        return version(package)
    except (PackageNotFoundError, OSError):
        return "unknown"


def _keep(details: str) -> Path | None:
    """Write the details where they can be; nothing if there is no such place."""
    name = f"{datetime.now(UTC):%Y-%m-%dT%H%M%S.%f}-{os.getpid()}.txt"
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    for place in (Path(state, "kochbuch", "faults"), None):
        try:
            folder = Path(tempfile.mkdtemp()) if place is None else place.expanduser()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = folder / name
            file.touch(mode=0o600, exist_ok=False)
            file.write_text(details, "utf-8", errors="backslashreplace")
        except (OSError, RuntimeError):  # the second: nobody knows where the home is
            continue
        return file
    return None


def _say(text: str) -> None:
    """Write on standard error, which may be gone too."""
    with suppress(OSError):
        say(text)
