"""Batches are read one step ahead, by a thread, and are those that reading late would give."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typing_extensions import override

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from components.data.manifest import Manifest
from components.errors import RecipeError
from components.parity.prover import draw_data
from components.train.batches import RankBatches
from components.train.prefetch import THREAD, Prefetcher

SECONDS = 20  # a test that waits longer has failed


class Watched(RankBatches):
    """Note by which thread what is read, and let a test hold the reader up."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        super().__init__(
            recipe=recipe, folder=folder, manifest=Manifest.from_folder(folder), rank=0
        )
        self.reads: list[tuple[str, list[int]]] = []
        self.may_read = threading.Event()
        self.may_read.set()

    @override
    def read_samples(self, positions: Sequence[int], *, pinned: bool) -> Tensor:
        assert self.may_read.wait(SECONDS)
        self.reads.append((threading.current_thread().name, list(positions)))
        return super().read_samples(positions, pinned=pinned)


class Loop:
    """A run's loop, as far as its batches go."""

    def __init__(self, batches: RankBatches, steps: int = 10) -> None:
        self.taken = 0
        self.reader = Prefetcher(
            batches, lambda: self.taken, steps=range(steps), device=torch.device("cpu")
        )

    def __iter__(self) -> Iterator[Tensor]:
        for batch in self.reader:
            yield batch.tokens
            self.taken += 1


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return compose_recipe(read_point(["recipe=teuken7b", "scale=parity"]))


@pytest.fixture
def batches(recipe: Recipe, tmp_path: Path) -> Watched:
    draw_data(recipe, tmp_path / "data")
    return Watched(recipe, tmp_path / "data")


def late(batches: RankBatches, step: int) -> Tensor:
    return RankBatches.read_samples(batches, batches.list_sample_numbers(step), pinned=False)


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


def wait_for_readers() -> None:
    for thread in readers():
        thread.join(SECONDS)


def test_the_next_step_is_read_by_a_thread(batches: Watched) -> None:
    steps = iter(Loop(batches))
    next(steps)
    wait_for_readers()
    assert batches.reads == [(THREAD, batches.list_sample_numbers(step)) for step in (0, 1)]
    next(steps)
    wait_for_readers()
    assert [positions for _, positions in batches.reads][2:] == [batches.list_sample_numbers(2)]
    batches.may_read.clear()
    assert torch.equal(next(steps), late(batches, 2))  # while that of step 3 cannot be read
    assert len(readers()) == 1
    batches.may_read.set()
    steps.close()  # type: ignore[attr-defined]  # a generator
    assert not readers()  # of a run that ends midway


def test_every_step_has_its_batch(batches: Watched) -> None:
    found = list(Loop(batches, steps=5))
    assert len(found) == 5
    assert all(torch.equal(one, late(batches, step)) for step, one in enumerate(found))
    assert [positions for _, positions in batches.reads] == [
        batches.list_sample_numbers(step) for step in range(5)
    ]
    assert not readers()


def test_samples_that_a_guard_skips_are_dropped_after_prefetch(batches: Watched) -> None:
    loop = Loop(batches)
    steps = iter(loop.reader)
    next(steps)
    wait_for_readers()
    batches.set_skipped([batches.find_window(0, 2)])  # the bad step and the one read ahead
    assert torch.equal(next(steps).tokens, late(batches, 0))
    wait_for_readers()
    assert [positions for _, positions in batches.reads][2:] == [
        batches.list_sample_numbers(step) for step in (0, 1)
    ]


def test_a_prefetched_batch_is_used_after_a_bad_step(batches: Watched) -> None:
    after = batches.list_sample_numbers(1)
    steps = iter(Loop(batches).reader)
    next(steps)
    batches.set_skipped([batches.find_window(0, 1)])
    assert torch.equal(next(steps).tokens, late(batches, 0))
    assert batches.list_sample_numbers(0) == after
    assert [positions for _, positions in batches.reads].count(after) == 1


def test_a_rollback_reads_from_its_step(batches: Watched) -> None:
    loop = Loop(batches)
    steps = iter(loop.reader)
    for loop.taken in (7, 3, 4):
        assert torch.equal(next(steps).tokens, late(batches, loop.taken))


def test_a_read_error_of_the_thread_has_the_same_message(batches: Watched, tmp_path) -> None:
    for source in Manifest.from_folder(tmp_path / "data").sources.values():
        for record in source.train:
            file = tmp_path / "data" / record.name
            file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(RecipeError) as expected:
        late(batches, 0)
    with pytest.raises(RecipeError) as found:
        next(iter(Loop(batches)))
    assert str(found.value) == str(expected.value)
    assert not readers()


def test_a_prefetch_error_is_raised_when_its_batch_is_needed(batches: Watched) -> None:
    bad = batches.list_sample_numbers(1)

    def fail(positions: Sequence[int], *, pinned: bool) -> Tensor:
        if list(positions) == bad:
            raise RecipeError("data.folder", "cannot be read", "mend it")
        return late(batches, 0)

    batches.read_samples = fail  # type: ignore[method-assign]  # as a file that is damaged in one place
    loop = Loop(batches)
    steps = iter(loop.reader)
    next(steps)
    wait_for_readers()
    batches.set_skipped([batches.find_window(1, 2)])
    loop.taken = 1
    next(steps)  # the guard has left the damaged place out
    batches.set_skipped([])
    with pytest.raises(RecipeError, match=r"^data\.folder: cannot be read"):
        next(steps)
