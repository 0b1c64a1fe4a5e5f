"""A folder's writer lock: one writer at a time, with the processes that it starts.

The lock is the kernel's (`flock`): a killed process leaves none behind, and it is free when the
last process that shares it has ended. The file names them, for messages; where a file system
has no locks, that is all there is to go by. Who trains in a run folder holds it with all ranks.
"""

import errno
import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from components.config.schema.types import Section
from components.errors import RecipeError
from components.run.disk import explained
from components.run.event_log import job_name
from components.terminal import say

LOCK = "writer.lock"
SUBMIT_LOCK = "submit.lock"
SUBMITTING_SECONDS = 90.0  # to wait for who submits; a scheduler answers within 60 s or not
NAMELESS = "a process that left no name"
TRAINED = "is being trained by"
DYING_SECONDS = 5.0  # what killed processes may take to end
# A server takes back the lock of a node that died: NFS 4 after 90 s, if nobody chose otherwise.
DEAD_NODE_SECONDS = 100.0
# Set for ranks whose launcher holds the lock: they share it. A job's first rank takes it.
SHARES = "KOCHBUCH_SHARES_WRITER_LOCK"
LOCKLESS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
HIDDEN = -1
_PAUSE_SECONDS = 0.1
_MOST_BYTES = 65_536  # of names; the file may come from anywhere


class Holder(Section):
    """A process that writes in the folder; ``started`` tells it from a later of its number."""

    host: Annotated[str, Field(pattern=r"^[\w.-]+$", max_length=255)]
    namespace: int = 0  # of process ids: containers of one host have their own
    in_job: bool = False
    process: Annotated[int, Field(gt=0)]
    started: int
    since: Annotated[str, Field(pattern=r"^[\d :+-]+$", max_length=32)]
    file: int  # its inode: in a copy of the folder the name stands for nobody

    def __str__(self) -> str:
        return f"process {self.process} on host {self.host} since {self.since}"

    @property
    def is_here(self) -> bool:
        return (self.host, self.namespace) == (socket.gethostname(), _namespace())

    @property
    def may_live(self) -> bool:
        """Whether the process may still run.

        On this host the kernel knows, and tells a later process of the same number apart. A job
        on another host has ended: the scheduler starts no second job before. Any other process
        on another host may run.
        """
        started = _started(self.process)
        return started in {self.started, HIDDEN} if self.is_here else not self.in_job


Occupied = Callable[[Holder | None], RecipeError]


@contextmanager
def alone(
    folder: Path,
    *,
    seconds: float,
    occupied: Occupied,
    say: Callable[[str], None],
    name: str = LOCK,
) -> Iterator[int]:
    """Hold the folder while nobody else writes there; ``seconds`` is how long to wait for it.

    The descriptor that is given holds the lock, too, in whatever process inherits it.

    Raises:
        RecipeError: somebody writes there: what ``occupied`` makes of who it is, if known.
    """
    with _opened(folder / name) as lock:
        end = time.monotonic() + seconds
        while (found := _take(lock)) == "held":
            if time.monotonic() > end:
                raise _refusal(lock, folder / name, occupied)
            time.sleep(_PAUSE_SECONDS)
        if found == "taken":
            os.ftruncate(lock, 0)
            sign(lock, os.getpid())
        else:
            _sign_without_locks(lock, folder, occupied, say)
        try:
            yield lock
        finally:
            if _take(lock) != "held":  # nor does one who was started and goes on
                os.ftruncate(lock, 0)


def share(folder: Path, *, occupied: Occupied) -> None:
    """Hold the folder, beside the process that took it alone, until this process ends.

    Raises:
        RecipeError: that process is gone, and somebody else has taken the folder.
    """
    with _opened(folder / LOCK) as lock:
        kept = os.dup(lock)  # of the same lock, and closed by nobody
        if _flock(kept, fcntl.LOCK_SH) == "held":
            os.close(kept)
            raise occupied(_likely(lock))
        sign(kept, os.getpid())


def sign(lock: int, process: int) -> None:
    """Name a process that holds ``lock``; on a full disk it is held without a name."""
    holder = Holder(
        host=socket.gethostname(),
        namespace=_namespace(),
        in_job=job_name(os.environ) is not None,
        process=process,
        started=_started(process) or 0,
        since=datetime.now().astimezone().isoformat(" ", "seconds"),
        file=os.fstat(lock).st_ino,
    )
    with suppress(OSError):
        os.write(lock, json.dumps(holder.model_dump()).encode() + b"\n")


def writer_of(folder: Path) -> Holder | str | None:
    """Tell who holds the folder, which stays as it is; None if nobody does."""
    if not (folder / LOCK).exists():
        return None
    with _opened(folder / LOCK, for_reading=True) as lock:
        return (_likely(lock) or NAMELESS) if _take(lock) == "held" else None


def check_free(folder: Path, *, occupied: Occupied) -> None:
    """Refuse a folder that somebody holds, and leave it as it is.

    Raises:
        RecipeError: somebody does.
    """
    if (folder / LOCK).exists():
        with _opened(folder / LOCK) as lock:
            if _take(lock) == "held":
                raise _refusal(lock, folder / LOCK, occupied)


def _refusal(lock: int, file: Path, occupied: Occupied) -> RecipeError:
    """Make the error that names the holder; without file locks it says which file to remove."""
    error = occupied(_likely(lock))
    if _flock(lock, fcntl.LOCK_SH) != "no locks":
        return error
    way = f"its file system has no locks: if that process has ended, remove {file}"
    return RecipeError(error.path, error.problem, f"{error.remedy}; {way}")


@contextmanager
def _opened(file: Path, *, for_reading: bool = False) -> Iterator[int]:
    """Open the lock file, never through a link; ``for_reading`` it need not be writable.

    A server of network files locks only what is open for writing, so that is tried first.

    Raises:
        RecipeError: something else has its name.
    """
    flags = os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    no_file = RecipeError(str(file), "is no plain file, and cannot be a lock", "remove it")
    try:
        try:
            descriptor = os.open(file, flags | os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            if not (for_reading and error.errno in {errno.EACCES, errno.EROFS}):
                raise
            descriptor = os.open(file, flags | os.O_RDONLY)
    except OSError as error:
        if error.errno not in {errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV}:
            raise
        raise no_file from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise no_file
        yield descriptor
    finally:
        os.close(descriptor)


def _take(lock: int) -> Literal["taken", "held", "no locks"]:
    """Take the lock alone, which shows that nobody has it, then share it."""
    found = _flock(lock, fcntl.LOCK_EX)
    if found == "taken":
        return _flock(lock, fcntl.LOCK_SH)
    if found == "no locks" and any(one.may_live for one in _others(lock)):
        return "held"
    return found


def _flock(lock: int, kind: int) -> Literal["taken", "held", "no locks"]:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return "held"
    except OSError as error:
        if error.errno not in LOCKLESS:
            raise
        return "no locks"
    return "taken"


def _sign_without_locks(
    lock: int, folder: Path, occupied: Occupied, say: Callable[[str], None]
) -> None:
    """Be named, and look again: of two that begin at once the first one named goes on.

    Raises:
        RecipeError: another process of this host was first.
    """
    elsewhere = [one for one in _others(lock) if not one.is_here]
    sign(lock, os.getpid())
    for one in _named(lock):
        if one.is_here and one.process == os.getpid():
            break
        if one.may_live:
            raise occupied(one)
    hint = f"; see that this one has ended: {elsewhere[-1]}" if elsewhere else ""
    say(f"{folder}: no locks on its file system, and nobody can tell who writes there{hint}")


def _named(lock: int) -> list[Holder]:
    """Read who is named; what is no name of this very file is left out."""
    found = []
    for line in os.pread(lock, _MOST_BYTES, 0).splitlines():
        with suppress(ValidationError):  # half a name, of a killed process, or anything
            found.append(Holder.model_validate_json(line))
    return [one for one in found if one.file == os.fstat(lock).st_ino]


def _others(lock: int) -> list[Holder]:
    return [one for one in _named(lock) if one.process != os.getpid() or not one.is_here]


def _likely(lock: int) -> Holder | None:
    """Choose whom to name: one that is seen to live, else the first."""
    named = _named(lock)
    return next((one for one in named if one.may_live), named[0] if named else None)


def _namespace() -> int:
    """Return the number of this process's PID namespace; 0 where the system has none."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def _started(process: int) -> int | None:
    """Return the kernel's start time of a process; None if the process has ended.

    `HIDDEN` stands for a process of another user if the kernel hides those (hidepid).
    """
    try:
        state = Path(f"/proc/{process}/stat").read_text("ascii", errors="replace")
    except OSError:
        try:
            os.kill(process, 0)  # sends nothing
        except PermissionError:
            return HIDDEN
        except (ProcessLookupError, OverflowError):
            pass
        return None
    fields = state.rpartition(") ")[2].split()  # a program's name may have spaces
    return None if fields[0] in {"Z", "X"} else int(fields[19])


@contextmanager
def train_alone(
    path: Path, key: str, say: Callable[[str], None], *, seconds: float = DYING_SECONDS
) -> Iterator[int]:
    """Hold the run folder for who named it by ``key``; see `alone`.

    Raises:
        RecipeError: the run is trained by somebody else.
    """
    occupied = partial(_trained, path, key)
    with explained(path), alone(path, seconds=seconds, occupied=occupied, say=say) as lock:
        yield lock


@contextmanager
def rank_holds(
    path: Path, seen: Mapping[str, str], say: Callable[[str], None]
) -> Iterator[None]:
    """Hold the run folder as a rank: with its launcher, or in a job by the first for all.

    A job that is queued again may begin before its predecessor is gone.

    Raises:
        RecipeError: the run is trained by somebody else.
    """
    if SHARES not in seen and int(seen.get("RANK", "0")) == 0:
        with train_alone(path, "run", say, seconds=DEAD_NODE_SECONDS):
            yield
        return
    if SHARES in seen:
        share(path, occupied=partial(_trained, path, "run"))
    yield


@contextmanager
def submission_lock(path: Path, *, seconds: float = SUBMITTING_SECONDS) -> Iterator[None]:
    """Let one process at a time submit or cancel the run's jobs, from check to record.

    Raises:
        RecipeError: another process does so for too long, or the folder cannot be made.
    """

    def occupied(holder: Holder | None) -> RecipeError:
        problem = f"{path} is being submitted or cancelled by {holder or NAMELESS}"
        return RecipeError("run", problem, "repeat the command when that one has ended")

    with explained(path):
        path.mkdir(parents=True, exist_ok=True)
        with alone(path, seconds=seconds, occupied=occupied, say=say, name=SUBMIT_LOCK):
            yield


def check_not_trained(path: Path, key: str) -> None:
    """Refuse a run that is trained now.

    Raises:
        RecipeError: so is this one.
    """
    with explained(path):
        check_free(path, occupied=partial(_trained, path, key))


def _trained(path: Path, key: str, holder: Holder | None) -> RecipeError:
    who = holder or NAMELESS
    way = f"wait until it ends, or let it save and stop: touch {path / 'stop'}"
    return RecipeError(key, f"{path} {TRAINED} {who}", way)
