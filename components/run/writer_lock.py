"""Writer lock of a folder: one writer at a time, with the processes that it starts.

The kernel's lock (`flock`) is released when the last process that shares it ends, even if
killed. The file lists the holders for messages; on a file system without locks, only this list
exists. All ranks of a training run hold the run folder's lock.
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
from components.run.disk import as_recipe_error
from components.run.event_log import job_name
from components.terminal import log_line

LOCK = "writer.lock"
SUBMIT_LOCK = "submit.lock"
SUBMITTING_SECONDS = 90.0  # wait for another submission; scheduler commands time out after 60 s
NAMELESS = "an unknown process"
TRAINED = "is being trained by"
DYING_SECONDS = 5.0  # time for killed processes to end
# A server releases the lock of a dead node: NFS 4 after 90 s by default.
DEAD_NODE_SECONDS = 100.0
# Set for ranks that share their launcher's lock. In a job, the first rank takes the lock.
SHARES = "KOCHBUCH_SHARES_WRITER_LOCK"
LOCKLESS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
HIDDEN = -1
_PAUSE_SECONDS = 0.1
_MOST_BYTES = 65_536  # to read of the holders; the file is untrusted


class Holder(Section):
    """A process that holds the lock. ``started`` distinguishes it from a reused process id."""

    host: Annotated[str, Field(pattern=r"^[\w.-]+$", max_length=255)]
    namespace: int = 0  # PID namespace: each container of a host has its own
    in_job: bool = False
    process: Annotated[int, Field(gt=0)]
    started: int
    since: Annotated[str, Field(pattern=r"^[\d :+-]+$", max_length=32)]
    file: int  # inode of the lock: a copy of the folder has no holder

    def __str__(self) -> str:
        return f"process {self.process} on host {self.host} since {self.since}"

    @property
    def is_here(self) -> bool:
        return (self.host, self.namespace) == (socket.gethostname(), _namespace())

    @property
    def may_live(self) -> bool:
        """Whether the process may still run; the kernel knows for this host.

        Jobs on other hosts have ended: the scheduler starts no other job before.
        """
        started = _started(self.process)
        return started in {self.started, HIDDEN} if self.is_here else not self.in_job


Occupied = Callable[[Holder | None], RecipeError]


@contextmanager
def lock_folder(
    folder: Path,
    *,
    seconds: float,
    occupied: Occupied,
    say: Callable[[str], None],
    name: str = LOCK,
) -> Iterator[int]:
    """Hold the folder's lock as its only writer; wait for it for up to ``seconds``.

    A process that inherits the yielded descriptor also holds the lock. If another process holds
    it, ``occupied`` creates the RecipeError from the holder, if known.
    """
    with _opened(folder / name) as lock:
        end = time.monotonic() + seconds
        while (state := _take(lock)) == "held":
            if time.monotonic() > end:
                raise _refusal(lock, folder / name, occupied)
            time.sleep(_PAUSE_SECONDS)
        if state == "taken":
            os.ftruncate(lock, 0)
            write_holder(lock, os.getpid())
        else:
            _sign_without_locks(lock, folder, occupied, say)
        try:
            yield lock
        finally:
            if _take(lock) != "held":  # no started process still holds it
                os.ftruncate(lock, 0)


def share_lock(folder: Path, *, occupied: Occupied) -> None:
    """Share the lock with the process that took it, until this process ends.

    Raise ``occupied`` if that process has ended and another process has taken the lock.
    """
    with _opened(folder / LOCK) as lock:
        duplicate = os.dup(lock)  # holds the same lock and stays open
        if _flock(duplicate, fcntl.LOCK_SH) == "held":
            os.close(duplicate)
            raise occupied(_likely(lock))
        write_holder(duplicate, os.getpid())


def write_holder(lock: int, process: int) -> None:
    """Add a holder's record to ``lock``. On a full disk the record is missing."""
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
    """Return the holder of the folder's lock, or None. The folder is not changed."""
    if not (folder / LOCK).exists():
        return None
    with _opened(folder / LOCK, for_reading=True) as lock:
        return (_likely(lock) or NAMELESS) if _take(lock) == "held" else None


def check_free(folder: Path, *, occupied: Occupied) -> None:
    """Raise ``occupied`` if another process holds the folder's lock; change nothing."""
    if (folder / LOCK).exists():
        with _opened(folder / LOCK) as lock:
            if _take(lock) == "held":
                raise _refusal(lock, folder / LOCK, occupied)


def _refusal(lock: int, file: Path, occupied: Occupied) -> RecipeError:
    """Return the error that names the holder, and without file locks the file to remove."""
    error = occupied(_likely(lock))
    if _flock(lock, fcntl.LOCK_SH) != "no locks":
        return error
    hint = f"the file system has no locks: if that process has ended, remove {file}"
    return RecipeError(error.path, error.problem, f"{error.remedy}; {hint}")


@contextmanager
def _opened(file: Path, *, for_reading: bool = False) -> Iterator[int]:
    """Open a regular lock file, not through a link; ``for_reading`` allows a read-only file.

    Network file servers lock only files that are open for writing, so this is tried first.
    """
    flags = os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    no_file = RecipeError(str(file), "cannot be a lock: it is not a regular file", "remove it")
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
    """Take the lock exclusively, which shows that it is free, then make it shared.

    Without file locks it is held if another listed process may live.
    """
    state = _flock(lock, fcntl.LOCK_EX)
    if state == "taken":
        return _flock(lock, fcntl.LOCK_SH)
    if state == "no locks" and any(other.may_live for other in _others(lock)):
        return "held"
    return state


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
    """Add this process to the list of holders; raise if a live holder precedes it."""
    elsewhere = [holder for holder in _others(lock) if not holder.is_here]
    write_holder(lock, os.getpid())
    for holder in _named(lock):
        if holder.is_here and holder.process == os.getpid():
            break
        if holder.may_live:
            raise occupied(holder)
    hint = f"; check that this process has ended: {elsewhere[-1]}" if elsewhere else ""
    say(f"{folder}: its file system has no locks, so other writers cannot be excluded{hint}")


def _named(lock: int) -> list[Holder]:
    """Return the listed holders of this very file. Invalid lines are skipped."""
    holders = []
    for line in os.pread(lock, _MOST_BYTES, 0).splitlines():
        with suppress(ValidationError):  # an incomplete or foreign line
            holders.append(Holder.model_validate_json(line))
    return [holder for holder in holders if holder.file == os.fstat(lock).st_ino]


def _others(lock: int) -> list[Holder]:
    return [
        holder for holder in _named(lock) if holder.process != os.getpid() or not holder.is_here
    ]


def _likely(lock: int) -> Holder | None:
    """Return the first holder that may live, else the first holder."""
    named = _named(lock)
    return next((holder for holder in named if holder.may_live), named[0] if named else None)


def _namespace() -> int:
    """Return the number of this process's PID namespace; 0 if the system has none."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def _started(process: int) -> int | None:
    """Return a process's kernel start time; None if it has ended, `HIDDEN` under hidepid."""
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
def train_alone(path: Path, key: str, *, seconds: float = DYING_SECONDS) -> Iterator[int]:
    """Hold the run folder's lock; see `lock_folder`. Errors name the argument ``key``."""
    occupied = partial(_trained, path, key)
    with (
        as_recipe_error(path),
        lock_folder(path, seconds=seconds, occupied=occupied, say=log_line) as lock,
    ):
        yield lock


@contextmanager
def rank_holds(path: Path, seen: Mapping[str, str]) -> Iterator[None]:
    """Hold the run folder's lock as a rank: share the launcher's, or take it for the job.

    In a job, rank 0 holds the lock for all ranks. It waits, because a requeued job may start
    before its previous attempt has ended.
    """
    if SHARES not in seen and int(seen.get("RANK", "0")) == 0:
        with train_alone(path, "run", seconds=DEAD_NODE_SECONDS):
            yield
        return
    if SHARES in seen:
        share_lock(path, occupied=partial(_trained, path, "run"))
    yield


@contextmanager
def submission_lock(path: Path, *, seconds: float = SUBMITTING_SECONDS) -> Iterator[None]:
    """Hold the lock for submitting or cancelling the run's jobs, from check to record."""

    def occupied_error(holder: Holder | None) -> RecipeError:
        problem = f"{path} is being submitted or cancelled by {holder or NAMELESS}"
        return RecipeError("run", problem, "repeat the command when that process has ended")

    with as_recipe_error(path):
        path.mkdir(parents=True, exist_ok=True)
        with lock_folder(
            path, seconds=seconds, occupied=occupied_error, say=log_line, name=SUBMIT_LOCK
        ):
            yield


def check_not_trained(path: Path, key: str) -> None:
    """Raise a RecipeError if a process trains the run."""
    with as_recipe_error(path):
        check_free(path, occupied=partial(_trained, path, key))


def _trained(path: Path, key: str, holder: Holder | None) -> RecipeError:
    writer = holder or NAMELESS
    remedy = f"wait until it ends, or let it save and stop: touch {path / 'stop'}"
    return RecipeError(key, f"{path} {TRAINED} {writer}", remedy)
