"""Ranks that save a few numbers each, with what may go wrong while the files are hashed."""

import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from components.errors import RecipeError
from components.train.agreement import together
from components.train.checkpoint import Progress, Read, load_checkpoint, save_checkpoint

PROGRESS = Progress(step=2, tokens=20, loss_scale={"scale": 8.0})


class Numbers:
    """``count`` tensors dealt to the ranks, and one that all ranks have whole."""

    def __init__(self, count: int, before: Callable[[], object] | None = None) -> None:
        mine = range(dist.get_rank(), count, dist.get_world_size())
        self._before = before
        self._expected = {f"of.{one}": torch.full((100,), float(one)) for one in mine}
        self._expected["shared"] = torch.ones(9)

    def tensors(self) -> dict[str, Tensor]:
        if self._before is not None:
            self._before()  # nothing is written yet
        return self._expected

    def fill(self, read: Read) -> None:
        found = {name: torch.zeros_like(value) for name, value in self._expected.items()}
        read(found)
        for name, value in self._expected.items():
            assert torch.equal(found[name], value), name


class Opened:
    """Note which safetensors files Python opens to read, and do something before, once."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.before: Callable[[Path], object] | None = None
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or arguments[1] != "r":
            return
        if str(arguments[0]).endswith(".safetensors"):
            self.names.append(Path(arguments[0]).name)
            before, self.before = self.before, None
            if before is not None:
                before(Path(arguments[0]))


@cache
def opened() -> Opened:
    """Such a hook stays for the life of the process."""
    return Opened()


def save(folder: Path, count: int) -> list[str]:
    """Save, and return what this rank hashed."""
    opened().names.clear()
    save_checkpoint(folder, Numbers(count), PROGRESS)
    return list(opened().names)


def load(checkpoint: Path, count: int) -> list[str]:
    """Load, and return what this rank hashed."""
    opened().names.clear()
    assert load_checkpoint(checkpoint, Numbers(count)) == PROGRESS
    return list(opened().names)


def refused(case: Callable[..., object], *arguments: Any) -> str:
    """Return what a case was refused with; the ranks agree afterwards, so that none hangs."""
    try:
        case(*arguments)
    except RecipeError as error:
        said = str(error)
    else:
        said = "nothing"
    dist.barrier()
    return said


def save_while_a_file_vanishes(folder: Path, loser: int) -> None:
    """Lose one rank's file after all have written, before that rank reads it back."""
    if dist.get_rank() == loser:
        opened().before = Path.unlink
    save(folder, dist.get_world_size())


def save_into_folders_of_their_own(folder: Path) -> None:
    """Have a path that is another folder on each rank, as on disks that nodes do not share."""
    home, here = Path.cwd(), folder / str(dist.get_rank())
    here.mkdir()
    os.chdir(here)
    try:
        save(Path("checkpoints"), dist.get_world_size())
    finally:
        os.chdir(home)


def save_beside_a_stranger(folder: Path) -> None:
    """Have a file written between ours that no rank of ours wrote."""

    def write() -> None:
        if dist.get_rank() == 0:
            beside = folder / ".tokens-000000000000020"
            beside.mkdir(exist_ok=True)  # another rank may be first
            (beside / "stranger.safetensors").touch()

    save_checkpoint(folder, Numbers(1, before=write), PROGRESS)


def agree(failing: tuple[int, ...]) -> list[int]:
    def task() -> int:
        rank = dist.get_rank()
        if rank in failing:
            raise RecipeError(f"rank.{rank}", "fails", "mend it")
        return 10 * rank

    return together(task)
