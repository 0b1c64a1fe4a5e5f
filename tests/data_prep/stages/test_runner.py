"""Processes of tasks hold locks; repeatedly killed ones stop the preparation."""

import multiprocessing
import os
import threading
import time
from pathlib import Path

import pytest

from components.errors import RecipeError
from data_prep.stages import runner
from data_prep.stages.runner import Local, lock_preparation, work_under
from tests.data_prep.corpora import clean, write_corpus

TWO = Local(workers=2)


def test_repeatedly_killed_workers_stop_the_preparation(tmp_path):
    stopped, others = threading.Event(), {*multiprocessing.active_children()}

    def kill_them_all() -> None:
        while not stopped.wait(0.005):
            for process in {*multiprocessing.active_children()} - others:
                process.kill()

    killer = threading.Thread(target=kill_them_all)
    killer.start()
    messages: list[str] = []
    message = r"preparation\.workers: workers were killed 3 times without .*\n  use"
    try:
        with pytest.raises(RecipeError, match=message):
            clean(write_corpus(tmp_path / "t"), tmp_path / "s", executor=TWO, messages=messages)
    finally:
        stopped.set()
        killer.join()
    assert sum("a worker was killed" in line for line in messages) == 3


def test_the_error_of_a_task_is_raised_in_the_parent(tmp_path):
    sources, others = write_corpus(tmp_path / "t"), {*multiprocessing.active_children()}
    (tmp_path / "t" / "en1.jsonl").write_text('{"tekst": "x"}\n')
    with pytest.raises(RecipeError, match=r"en\.files: .*en1\.jsonl:1 line 1 has no text"):
        clean(sources, tmp_path / "s", executor=TWO)
    assert {*multiprocessing.active_children()} <= others


def silent(text: str) -> None:
    """Print nothing."""


SPAWN = multiprocessing.get_context("spawn")


def hold(folder: Path, seconds: float) -> None:
    work_under(os.getppid(), folder)
    (folder / "held").touch()
    time.sleep(seconds)


def serve(parent: int, folder: Path) -> None:
    work_under(parent, folder)
    (folder / "served").touch()


def occupy(folder: Path) -> None:
    with lock_preparation(folder, silent):
        (folder / "held").touch()
        time.sleep(60)


def wait_for(file: Path) -> None:
    end = time.monotonic() + 300
    while not file.exists():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_concurrent_preparation_is_refused_until_the_first_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "DYING_SECONDS", 0.2)
    process = SPAWN.Process(target=occupy, args=(tmp_path,))
    process.start()
    wait_for(tmp_path / "held")
    message = rf"process {process.pid} on host \S+ since 2\S+ \S+ is preparing data"
    with pytest.raises(RecipeError, match=message), lock_preparation(tmp_path, silent):
        pass
    process.kill()
    process.join()
    with lock_preparation(tmp_path, silent):
        pass


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0.5, 60])
def test_remaining_workers_are_awaited_and_then_named(tmp_path, monkeypatch, seconds):
    monkeypatch.setattr(runner, "DYING_SECONDS", 30.0 if seconds < 2 else 2.0)
    process = SPAWN.Process(target=hold, args=(tmp_path, seconds))
    process.start()
    wait_for(tmp_path / "held")
    if seconds < 2:
        with lock_preparation(tmp_path, silent):
            pass
    else:
        refused = pytest.raises(RecipeError, match=f"process {process.pid} on")
        with refused, lock_preparation(tmp_path, silent):
            pass
    process.kill()
    process.join()


def test_a_worker_without_its_command_exits_at_once(tmp_path):
    process = SPAWN.Process(target=serve, args=(os.getppid(), tmp_path))
    process.start()
    process.join()
    assert process.exitcode == 1
    assert not (tmp_path / "served").exists()
