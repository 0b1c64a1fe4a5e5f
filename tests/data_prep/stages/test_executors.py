"""Processes that do tasks, and what is said when they are killed for ever."""

import multiprocessing
import threading

import pytest

from components.errors import RecipeError
from data_prep.stages.runner import Local
from tests.data_prep.corpora import clean, write_corpus

TWO = Local(workers=2)


def test_workers_that_are_killed_time_and_again_are_given_up(tmp_path):
    stopped, others = threading.Event(), {*multiprocessing.active_children()}

    def kill_them_all() -> None:
        while not stopped.wait(0.005):
            for process in {*multiprocessing.active_children()} - others:
                process.kill()

    killer = threading.Thread(target=kill_them_all)
    killer.start()
    said: list[str] = []
    message = r"preparation\.workers: workers were killed 3 times without .*\n  use"
    try:
        with pytest.raises(RecipeError, match=message):
            clean(write_corpus(tmp_path / "t"), tmp_path / "s", executor=TWO, said=said)
    finally:
        stopped.set()
        killer.join()
    assert sum("a worker was killed" in line for line in said) == 3


def test_what_a_task_says_is_wrong_comes_out_of_its_process(tmp_path):
    sources, others = write_corpus(tmp_path / "t"), {*multiprocessing.active_children()}
    (tmp_path / "t" / "en1.jsonl").write_text('{"tekst": "x"}\n')
    with pytest.raises(RecipeError, match=r"en\.files: .*en1\.jsonl:1 line 1 has no text"):
        clean(sources, tmp_path / "s", executor=TWO)
    assert {*multiprocessing.active_children()} <= others
