"""What a file system refuses is said in words; one that is away or full is waited for."""

import logging
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Event

import pytest

from components.errors import RecipeError
from components.run.disk import FULL, GONE, REMEDIES, Patience, check_room

FILE = Path("runs/x/checkpoints")


def failing(number: int, times: int) -> tuple[list[int], Callable[[], str]]:
    calls: list[int] = []

    def task() -> str:
        calls.append(number)
        if len(calls) <= times:
            raise OSError(number, "as the kernel calls it")
        return "done"

    return calls, task


@pytest.mark.parametrize("number", sorted(set(REMEDIES) - GONE - FULL))
def test_errors_for_the_user_are_raised_at_once(number: int) -> None:
    calls, task = failing(number, times=1)
    with pytest.raises(RecipeError, match="cannot be written: as the kernel") as caught:
        Patience(seconds=60.0)(FILE, task)
    assert calls == [number]
    assert str(FILE) in str(caught.value)
    assert f"{REMEDIES[number]}, then resume" in caught.value.remedy


@pytest.mark.parametrize("number", sorted(GONE | FULL))
def test_a_file_system_that_comes_back_is_waited_for(number: int, monkeypatch, caplog) -> None:
    monkeypatch.setattr("components.run.disk.PAUSE_SECONDS", 0.001)
    calls, task = failing(number, times=3)
    patience = Patience(seconds=60.0)
    with caplog.at_level(logging.WARNING):
        assert patience(FILE, task) == "done"
    assert len(calls) == 4
    assert caplog.messages == [f"{FILE}: as the kernel calls it; trying again for 60 s"]
    assert patience.take_reasons() == ["as the kernel calls it"]
    assert patience.take_reasons() == []
    with pytest.raises(RecipeError, match="cannot be written"):
        Patience(seconds=0.01)(FILE, failing(number, times=99)[1])


def test_a_checkpoint_larger_than_the_disk_is_not_started(tmp_path: Path) -> None:
    check_room(tmp_path, needed_bytes=1, files=1)
    with pytest.raises(OSError, match=r"needs 1_000_000_000_000_000_000 bytes, but .* free"):
        check_room(tmp_path, needed_bytes=10**18, files=1)
    with pytest.raises(OSError, match=r"needs 1000000000000 files, but .* inodes are free"):
        check_room(tmp_path, needed_bytes=1, files=10**12)


def test_pauses_between_attempts_grow_and_end(monkeypatch):
    """A thousand ranks that write gigabytes twice a second would keep a full disk full."""
    clock, attempts = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    def task() -> None:
        attempts.append(clock[0])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with pytest.raises(RecipeError, match="cannot be written"):
        Patience(seconds=100.0)(FILE, task)
    pauses = [after - before for before, after in pairwise(attempts)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 8.5]


def test_a_stop_request_ends_the_wait() -> None:
    with ThreadPoolExecutor(1) as beside, pytest.MonkeyPatch.context() as patched:
        patched.setattr("components.run.disk.PAUSE_SECONDS", 60.0)
        stop_event = Event()
        patience = Patience(seconds=600.0, stopped=stop_event.is_set)
        waits = beside.submit(patience, FILE, failing(28, times=99)[1])
        with pytest.raises(TimeoutError):
            waits.result(timeout=0.5)
        stop_event.set()
        with pytest.raises(RecipeError, match="as the kernel calls it; a stop was requested"):
            waits.result(timeout=50.0)


def test_a_hidden_folder_returns_after_a_kill(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "file").touch()
    program = (
        "import os, signal, sys; from pathlib import Path; "
        "from components.fault_tolerance.faults import take_away; "
        "take_away(Path(sys.argv[1]), 0.3); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(folder)], check=False)
    assert done.returncode == -9
    assert not (folder / "file").exists()
    end = time.monotonic() + 300
    while not (folder / "file").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
