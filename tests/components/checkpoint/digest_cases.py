"""Ranks that save a few numbers each, with what may go wrong while the files are hashed."""

import os
import sys
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from components.checkpoint.metadata import RunProgress
from components.checkpoint.saving import Read
from components.distributed.collectives import gather_results
from components.errors import RecipeError
from tests.components.checkpoint.saving_cases import load_checkpoint, save_checkpoint

SCALE = {"scale": 8.0, "hysteresis_left": 2, "good_steps": 1}
PROGRESS = RunProgress(step=2, tokens=20, loss_scale=SCALE)


class Numbers:
    """``count`` tensors dealt to the ranks, and one that all ranks have whole."""

    def __init__(self, count: int) -> None:
        mine = range(dist.get_rank(), count, dist.get_world_size())
        self._expected = {f"of.{one}": torch.full((100,), float(one)) for one in mine}
        self._expected["shared"] = torch.ones(9)

    def collect_tensors(self) -> dict[str, Tensor]:
        return self._expected

    def load_tensors(
        self, read: Read, saved: Collection[str], *, fresh_optimizer: bool
    ) -> None:
        found = {name: torch.zeros_like(value) for name, value in self._expected.items()}
        read(found)
        for name, value in self._expected.items():
            assert torch.equal(found[name], value), name


class Opened:
    """Note which safetensors files Python opens to read.

    ``before_looking`` is called once, when all ranks have written, with the folder in which
    the first rank is about to look for their files.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.before_looking: Callable[[Path], object] | None = None
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        path = Path(str(arguments[0])) if event in {"open", "os.scandir"} else Path()
        if event == "open" and arguments[1] in {"r", "rb"} and path.suffix == ".safetensors":
            self.names.append(path.name)
        if event == "os.scandir" and path.name.startswith(".tokens"):
            look, self.before_looking = self.before_looking, None
            if look is not None:
                look(path)


@cache
def opened() -> Opened:
    """Such a hook stays for the life of the process."""
    return Opened()


def save(folder: Path, count: int) -> list[str]:
    opened().names.clear()
    save_checkpoint(folder, Numbers(count), PROGRESS)
    return list(opened().names)


def load(checkpoint: Path, count: int) -> list[str]:
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
    opened().before_looking = lambda grown: sorted(grown.iterdir())[loser].unlink()
    save(folder, dist.get_world_size())


def save_into_folders_of_their_own(folder: Path) -> None:
    """Have a path that is another folder on each rank, as on disks that nodes do not share."""
    home, here = Path.cwd(), folder / str(dist.get_rank())
    (here / "checkpoints").mkdir(parents=True)
    os.chdir(here)
    try:
        save(Path("checkpoints"), dist.get_world_size())
    finally:
        os.chdir(home)


def save_beside_a_stranger(folder: Path) -> None:
    opened().before_looking = lambda grown: (grown / "stranger.safetensors").touch()
    save(folder, 1)


def agree(failing: tuple[int, ...]) -> list[int]:
    def task() -> int:
        rank = dist.get_rank()
        if rank in failing:
            raise RecipeError(f"rank.{rank}", "fails", "mend it")
        return 10 * rank

    return gather_results(task)
