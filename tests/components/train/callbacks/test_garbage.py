"""Between the steps of its schedule nothing collects garbage; after a run all is as before."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any, cast

import pytest

from components.checkpoint.metadata import RunProgress
from components.train.callbacks.garbage_collection import GarbageCollection

TRAINER: Any = None  # which these hooks do not ask


class Run:
    """As much of a run as the schedule asks for."""

    def __init__(self) -> None:
        self.progress = RunProgress(step=0, tokens=0)

    def take(self, schedule: GarbageCollection, step: int) -> None:
        self.progress = RunProgress(step=step, tokens=step)
        schedule.on_train_batch_end(TRAINER, cast("Any", self))


class Node:
    """An object that keeps itself."""

    def __init__(self) -> None:
        self.itself: Any = self


@pytest.fixture(autouse=True)
def _starts_without_frozen_objects() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.freeze()  # as after collection
    gc.enable()


def begun(every_steps: int) -> tuple[Run, GarbageCollection]:
    run, schedule = Run(), GarbageCollection(every_steps=every_steps)
    schedule.on_train_start(TRAINER, cast("Any", run))
    return run, schedule


def test_cycles_are_collected_at_scheduled_steps() -> None:
    run, schedule = begun(4)
    kept = weakref.ref(Node())
    for step in (1, 2, 3):
        run.take(schedule, step)
        many = [[step] for _ in range(100_000)]  # by its own rule Python would collect here
        del many
        assert kept() is not None
    run.take(schedule, 4)
    assert kept() is None
    schedule.close()


def test_objects_before_the_first_step_are_frozen():
    _, schedule = begun(4)
    assert gc.get_freeze_count() > 10_000
    schedule.close()
    assert gc.get_freeze_count() == 0
    GarbageCollection(every_steps=4).close()
    assert gc.isenabled()


def test_objects_frozen_by_the_program_stay_frozen() -> None:
    gc.freeze()
    _, schedule = begun(4)
    schedule.close()
    assert gc.get_freeze_count() > 10_000


@pytest.mark.parametrize("was_enabled", [True, False])
def test_after_the_run_garbage_collection_is_restored(was_enabled: bool) -> None:
    if not was_enabled:
        gc.disable()
    _, schedule = begun(4)
    assert not gc.isenabled()
    schedule.close()
    assert gc.isenabled() == was_enabled
