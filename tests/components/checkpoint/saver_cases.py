"""Ranks that save while they go on, while the disk is full, or while it is away."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist

from components.checkpoint.loading import load_newest
from components.checkpoint.metadata import RunProgress
from components.checkpoint.retention import Policy
from components.checkpoint.saving import FinishedCheckpoint, Saver
from components.errors import RecipeError
from components.fault_tolerance.faults import fill_up, take_away
from tests.components.checkpoint.numbers import Counted
from tests.components.checkpoint.saving_cases import FINGERPRINT, make_saver, make_stager_here

NOBODY = 65_534
LARGE = 200_000  # numbers a row of 6: some megabytes


@contextmanager
def saving(folder: Path, **changes: Any) -> Iterator[Saver]:
    """Save in another thread; nothing else uses the group meanwhile."""
    saver = make_saver(folder, **{"stager": make_stager_here()} | changes)
    try:
        yield saver
    finally:
        saver.close()


def begin(saver: Saver, state: Counted, step: int, **changes: Any) -> list[FinishedCheckpoint]:
    given: dict[str, Any] = {"kinds": ["tokens"], "held_out_loss": None}
    return saver.start_save(state, RunProgress(step=step, tokens=10 * step), **given | changes)


def save_steps(
    folder: Path, steps: range, *, length: int = 8, **changes: Any
) -> list[FinishedCheckpoint]:
    """Save after every step the number of that step, which the next step overwrites."""
    state, finished = Counted(0, length), []
    with saving(folder, **changes) as saver:
        for step in steps:
            state.become(step)
            finished += begin(saver, state, step)
            state.become(-1)
        return [*finished, *saver.wait_for_save()]


def loaded(folder: Path, length: int = 8) -> tuple[int, set[float], list[str]]:
    """Return the step that a run would go on from, its numbers, and what is damaged."""
    state = Counted(-2, length)
    chosen = load_newest(folder, state, fingerprint=FINGERPRINT)
    assert chosen is not None
    damaged = [f"{Path(one.path).name}: {one.problem}" for one in chosen.damaged]
    return chosen.marker.progress.step, state.values(), damaged


def save_where_it_is_full(folder: Path, full: tuple[int, ...]) -> str:
    """Save twice, the second time without room for what some ranks write."""
    state = Counted(1, LARGE)
    with saving(folder) as saver:
        begin(saver, state, 1)
        saver.wait_for_save()
        state.become(2)
        if dist.get_rank() in full:
            with fill_up(1_000_000):
                return said_by(saver, state)
        return said_by(saver, state)


def save_where_room_comes_back(folder: Path, full_seconds: float) -> tuple[str, ...]:
    """Save while one rank has no room for so long; return what was waited for."""
    state = Counted(1, LARGE)
    with saving(folder, retry_seconds=60.0) as saver, ExitStack() as full:
        if dist.get_rank() == 1:
            full.enter_context(fill_up(1_000_000))
            room_again = threading.Timer(full_seconds, full.close)
            room_again.start()
        begin(saver, state, 1)
        (finished,) = saver.wait_for_save()
        return finished.reasons


def said_by(saver: Saver, state: Counted) -> str:
    begin(saver, state, 2)
    try:
        saver.wait_for_save()
    except RecipeError as error:
        return str(error)
    return "nothing"


def save_while_it_is_away(folder: Path, away_seconds: float, retry_seconds: float) -> Any:
    """Save once, and twice more while the folder is away; return what came of it."""
    state = Counted(1, LARGE)
    with saving(folder, retry_seconds=retry_seconds) as saver:
        begin(saver, state, 1)
        saver.wait_for_save()
        dist.barrier()
        if dist.get_rank() == 0:
            take_away(folder, away_seconds)
        dist.barrier()
        try:
            for step in (2, 3):
                state.become(step)
                finished = begin(saver, state, step)
            (second,), (third,) = finished, saver.wait_for_save()
            return second.stall_seconds, third.waited_seconds
        except RecipeError as error:
            return str(error)
        finally:
            while not folder.exists():  # the next case begins with it
                time.sleep(0.01)
            dist.barrier()


def save_as_nobody(folder: Path) -> str:
    """Save where this user may not write; root may anywhere, so be somebody else."""
    folder.chmod(0o555)
    is_root = os.geteuid() == 0
    state = Counted(2)
    with saving(folder) as saver:
        try:
            if is_root:
                os.seteuid(NOBODY)
            return said_by(saver, state)
        finally:
            if is_root:
                os.seteuid(0)
            folder.chmod(0o755)


def save_in_files(folder: Path, files: int) -> None:
    save_steps(folder, range(1, 2), files=files)


def save_and_copy(folder: Path, copy_to: Path, length: int = 8) -> None:
    policy = Policy(last=1, every_tokens=30, best=0)
    save_steps(folder, range(1, 7), length=length, policy=policy, copy_to=copy_to)


def refused_loading(folder: Path) -> str:
    try:
        loaded(folder)
    except RecipeError as error:
        return str(error)
    return "nothing"
