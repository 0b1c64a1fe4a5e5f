"""One writer at a time in a folder: with locks, without them, and whatever the file says."""

import errno
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from components.errors import RecipeError
from components.run import writer_lock
from components.run.writer_lock import (
    LOCK,
    SHARES,
    Holder,
    check_free,
    check_not_trained,
    lock_folder,
    rank_holds,
    share_lock,
    train_alone,
    write_holder,
    writer_of,
)

# Takes the folder, starts a child that inherits the lock, says so, and waits to be ended.
HOLDS = """
import subprocess, sys
from pathlib import Path
from components.run.writer_lock import lock_folder
with lock_folder(Path(sys.argv[1]), seconds=0, occupied=None, say=None) as lock:
    child = subprocess.Popen(["sleep", "60"], pass_fds=[lock] * int(sys.argv[2]))
    print(child.pid, flush=True)
    child.wait()
"""
SHARER = """
import sys, time
from pathlib import Path
from components.run.writer_lock import share_lock
share_lock(Path(sys.argv[1]), occupied=lambda holder: ValueError(holder))
print("shared", flush=True)
time.sleep(60)
"""

WAITS = "import time; print(flush=True); time.sleep(60)"


def occupied(holder: Holder | None) -> RecipeError:
    return RecipeError("run", f"held by {holder}")


@contextmanager
def taken(folder: Path, said: list[str] | None = None) -> Iterator[int]:
    say = (said if said is not None else []).append
    with lock_folder(folder, seconds=0.3, occupied=occupied, say=say) as lock:
        yield lock


def take(folder: Path, said: list[str] | None = None) -> None:
    with taken(folder, said):
        pass


@contextmanager
def process(program: str, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a program until it has said a line, and end it afterwards."""
    command = [sys.executable, "-c", program, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield running, running.stdout.readline().strip()
        finally:
            running.kill()


@pytest.fixture
def lockless(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_a_second_writer_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    with process(HOLDS, str(tmp_path), "0") as (first, child):
        who = rf"held by process {first.pid} on host {socket.gethostname()} since \d{{4}}-"
        with pytest.raises(RecipeError, match=who):
            take(tmp_path)
        with pytest.raises(RecipeError, match=who):
            check_free(tmp_path, occupied=occupied)
        first.kill()
        first.wait()
        take(tmp_path)
        check_free(tmp_path, occupied=occupied)
        os.kill(int(child), 9)


def test_a_child_holds_the_lock_after_its_parent_was_killed(tmp_path: Path) -> None:
    with process(HOLDS, str(tmp_path), "1") as (first, child):
        first.kill()
        first.wait()
        with pytest.raises(RecipeError, match=f"held by process {first.pid} on"):
            check_free(tmp_path, occupied=occupied)
        os.kill(int(child), 9)
        take(tmp_path)


def test_a_sharing_process_holds_the_lock_after_the_first_was_killed(tmp_path: Path) -> None:
    with (
        process(HOLDS, str(tmp_path), "0") as (launcher, child),
        process(SHARER, str(tmp_path)) as (rank, _),
    ):
        os.kill(int(child), 9)
        launcher.kill()
        launcher.wait()
        with pytest.raises(RecipeError, match=f"held by process {rank.pid} on"):
            take(tmp_path)


def test_a_lock_that_another_process_takes_cannot_be_shared(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    with (tmp_path / LOCK).open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(RecipeError, match="held by None"):
            share_lock(tmp_path, occupied=occupied)


def test_a_copy_of_a_folder_that_is_held_is_free(tmp_path: Path, lockless: None) -> None:
    (tmp_path / "run").mkdir()
    with taken(tmp_path / "run"):
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        names = (tmp_path / "copy" / LOCK).read_text()
        names = names.replace(str(os.getpid()), str(os.getppid()))
        (tmp_path / "copy" / LOCK).write_text(names)
        take(tmp_path / "copy")


def test_without_locks_a_living_process_is_refused_and_a_dead_one_not(tmp_path, lockless):
    said: list[str] = []
    with process(WAITS) as (other, _):
        with taken(tmp_path, said) as lock:
            write_holder(lock, other.pid)
        name = (tmp_path / LOCK).read_text().splitlines()[-1]
        (tmp_path / LOCK).write_text(f"{name}\n")
        with pytest.raises(RecipeError, match=f"held by process {other.pid} on"):
            take(tmp_path)
    take(tmp_path, said)
    warning = f"{tmp_path}: its file system has no locks, so other writers cannot be excluded"
    assert said == [warning] * 2


def test_without_locks_a_reused_process_id_holds_nothing(tmp_path, lockless):
    with taken(tmp_path) as lock:
        write_holder(lock, os.getppid())
        name = json.loads((tmp_path / LOCK).read_text().splitlines()[-1])
    later = name | {"started": name["started"] + 1}
    (tmp_path / LOCK).write_text(json.dumps(later) + "\n")
    take(tmp_path)


@pytest.fixture
def left_elsewhere(
    tmp_path: Path, lockless: None, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    """A killed process of another host, or of another container of this one, left its name."""
    for name in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "PBS_JOBID"):
        monkeypatch.delenv(name, raising=False)
    with monkeypatch.context() as there:
        there.setattr(*request.param[0])
        if request.param[1]:
            there.setenv("SLURM_JOB_ID", "77")
        with taken(tmp_path):
            name = (tmp_path / LOCK).read_text()
    (tmp_path / LOCK).write_text(name)


OTHER_HOST = (socket, "gethostname", lambda: "jwb0123")
OTHER_CONTAINER = (writer_lock, "_namespace", lambda: 1)


@pytest.mark.parametrize("left_elsewhere", [(OTHER_HOST, True)], indirect=True)
def test_without_locks_the_warning_names_a_job_of_another_host(tmp_path, left_elsewhere):
    """The scheduler starts the next job of a run when the one before has ended."""
    said: list[str] = []
    take(tmp_path, said)
    hint = f"; check that this process has ended: process {os.getpid()} on host jwb0123 since "
    assert hint in said[0]


@pytest.mark.parametrize(
    "left_elsewhere", [(OTHER_HOST, False), (OTHER_CONTAINER, False)], indirect=True
)
def test_without_locks_an_unknown_process_is_refused(tmp_path, left_elsewhere):
    way = f"if that process has ended, remove {tmp_path / LOCK}"
    with pytest.raises(RecipeError, match=way):
        take(tmp_path)
    with pytest.raises(RecipeError, match=way):
        check_free(tmp_path, occupied=occupied)
    (tmp_path / LOCK).unlink()
    take(tmp_path)


def test_without_locks_a_hidden_process_is_refused(tmp_path, lockless, monkeypatch):
    """As where /proc is mounted with hidepid."""
    with process(WAITS) as (other, _):
        with taken(tmp_path) as lock:
            write_holder(lock, other.pid)
            name = (tmp_path / LOCK).read_text().splitlines()[-1]
        (tmp_path / LOCK).write_text(f"{name}\n")

        def refuse(pid: int, number: int) -> None:
            raise PermissionError(errno.EPERM, "Operation not permitted")

        with monkeypatch.context() as hidden:
            hidden.setattr(Path, "read_text", hide_proc(Path.read_text))
            hidden.setattr(os, "kill", refuse)
            with pytest.raises(RecipeError, match="if that process has ended, remove"):
                check_free(tmp_path, occupied=occupied)


def hide_proc(read: Callable[..., str]) -> Callable[..., str]:
    def hidden(path: Path, *words: Any, **named: Any) -> str:
        if path.is_relative_to("/proc"):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return read(path, *words, **named)

    return hidden


def test_with_locks_the_entry_of_a_dead_host_is_ignored(tmp_path: Path) -> None:
    holder = {"host": "jwb0123", "process": 1, "started": 1, "since": "2026"}
    with taken(tmp_path) as lock:
        holder["file"] = os.fstat(lock).st_ino
    (tmp_path / LOCK).write_text(f"{json.dumps(holder)}\n")
    with taken(tmp_path):
        assert "jwb0123" not in (tmp_path / LOCK).read_text()


def test_without_locks_the_first_named_of_two_continues(tmp_path, lockless):
    """The other is named after this one has looked, and before this one is named."""
    with taken(tmp_path) as lock:
        write_holder(lock, os.getppid())
        first = (tmp_path / LOCK).read_text().splitlines()[-1]
    (tmp_path / LOCK).unlink()

    def say(text: str) -> None:
        raise AssertionError(text)

    looked = writer_lock._take

    def takes_its_time(lock: int) -> str:
        found = looked(lock)
        name = json.loads(first) | {"file": os.fstat(lock).st_ino}
        os.write(lock, json.dumps(name).encode() + b"\n")
        return found

    with pytest.MonkeyPatch.context() as between:
        between.setattr(writer_lock, "_take", takes_its_time)
        with (
            pytest.raises(RecipeError, match=f"held by process {os.getppid()} on"),
            lock_folder(tmp_path, seconds=0, occupied=occupied, say=say),
        ):
            pass


@pytest.mark.parametrize(
    "line",
    [
        *("", "{", "[1]", '{"host": "a", "process": 1}', "[" * 60_000, "\x00\xff"),
        '{"host": "\\u001b[2J", "process": 1, "started": 1, "since": "2026", "file": 1}',
        '{"host": "a", "process": 1, "started": 1, "since": "\\u001b", "file": 1}',
        '{"host": "a", "process": true, "started": 1, "since": "2026", "file": 1}',
    ],
)
def test_the_contents_of_a_lock_file_are_data(tmp_path: Path, line: str) -> None:
    """It may come from anywhere: only a name that a process would write is ever said."""
    (tmp_path / LOCK).write_text(line, "latin-1")
    with (tmp_path / LOCK).open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(RecipeError, match="held by None"):
            check_free(tmp_path, occupied=occupied)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda it: it.symlink_to("../own")])
def test_another_file_type_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    own = tmp_path / "own"
    own.write_text("mine")
    folder = tmp_path / "run"
    folder.mkdir()
    make(folder / LOCK)
    with pytest.raises(RecipeError, match=r"writer\.lock: cannot be a lock"):
        take(folder)
    assert own.read_text() == "mine"


def test_a_full_disk_leaves_the_lock_without_a_name(tmp_path, monkeypatch):
    def full(descriptor: int, text: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with taken(tmp_path), pytest.raises(RecipeError, match="held by None"), taken(tmp_path):
        pass


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_read_only_lock_names_its_holder(tmp_path, monkeypatch, number):
    """The tests may run as root, who can write everywhere."""
    open_any = os.open

    def open_to_read(file: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_RDWR:
            raise OSError(number, os.strerror(number), str(file))
        return open_any(file, flags, mode)

    with taken(tmp_path):
        monkeypatch.setattr("os.open", open_to_read)
        found = writer_of(tmp_path)
        assert isinstance(found, Holder)
        assert found.process == os.getpid()
        monkeypatch.setattr("os.open", open_any)
    monkeypatch.setattr("os.open", open_to_read)
    assert writer_of(tmp_path) is None
    with pytest.raises(OSError, match=os.strerror(number)):
        take(tmp_path)


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o022, 0o077])
def test_a_lock_has_the_mode_of_any_new_file(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with taken(tmp_path):
            assert (tmp_path / LOCK).stat().st_mode & 0o777 == 0o666 & ~mask
    finally:
        os.umask(before)


def test_a_run_that_trains_is_not_submitted(tmp_path: Path) -> None:
    check_not_trained(tmp_path, "run")
    assert not list(tmp_path.iterdir())
    with (
        train_alone(tmp_path, "run"),
        pytest.raises(RecipeError, match=r"run: \S+ is being trained by process"),
    ):
        check_not_trained(tmp_path, "run")
    check_not_trained(tmp_path, "run")


def test_ranks_of_the_command_share_its_lock(tmp_path: Path) -> None:
    with (
        train_alone(tmp_path, "run"),
        rank_holds(tmp_path, {SHARES: "1", "RANK": "0"}),
        rank_holds(tmp_path, {SHARES: "1", "RANK": "1"}),
    ):
        pass


def test_the_first_rank_of_a_job_holds_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_lock, "DEAD_NODE_SECONDS", 0.2)
    with (
        rank_holds(tmp_path, {"RANK": "0"}),
        rank_holds(tmp_path, {"RANK": "1"}),
        pytest.raises(RecipeError, match="is being trained by process"),
        rank_holds(tmp_path, {"RANK": "0"}),
    ):
        pass


def test_an_unwritable_folder_is_named(tmp_path, monkeypatch):
    def read_only(*words: object) -> None:
        raise OSError(30, "Read-only file system", str(tmp_path / "writer.lock"))

    monkeypatch.setattr("components.run.writer_lock.os.open", read_only)
    with (
        pytest.raises(RecipeError, match=r"writer\.lock: cannot be written: Read-only"),
        train_alone(tmp_path, "run"),
    ):
        pass
