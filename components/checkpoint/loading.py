"""Going on from the newest checkpoint that is whole, whatever layout or engine wrote it."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load

from components.checkpoint.error_sync import by_first, together
from components.checkpoint.metadata import (
    DamagedCheckpointError,
    Marker,
    RunProgress,
    complete_checkpoints,
    read_marker,
    tokens_of,
)
from components.checkpoint.reading import PieceReader, read_pieces
from components.checkpoint.sections import check_sections
from components.checkpoint.state import State
from components.errors import RecipeError

Check = Callable[[Path], Marker]


@dataclass(frozen=True)
class CheckpointChoice:
    """The newest whole checkpoint, and what is wrong with the newer ones."""

    checkpoint: Path
    marker: Marker
    damaged: tuple[DamagedCheckpointError, ...]


def load_newest(folder: Path, state: State, *, fingerprint: str) -> CheckpointChoice | None:
    """Fill the state from the newest whole checkpoint; damaged ones are set aside.

    Raises:
        RecipeError: there are checkpoints and none is whole, or that one is of another recipe;
            all ranks raise it.
    """
    names = by_first(lambda: [one.name for one in complete_checkpoints(folder)])
    chosen = _choose(folder, iter(names), check_together)
    if chosen is not None:
        load_checkpoint(chosen.checkpoint, chosen.marker, state, fingerprint=fingerprint)
        by_first(lambda: set_aside(folder, names[: len(chosen.damaged)]))
    return chosen


def choose_up_to(folder: Path, tokens: int) -> CheckpointChoice | None:
    """Find the newest whole checkpoint of at most ``tokens``; all ranks call this.

    Raises:
        RecipeError: there are such and none is whole; all ranks raise it.
    """
    names = by_first(lambda: [one.name for one in complete_checkpoints(folder)])
    early = (name for name in names if tokens_of(folder / name) <= tokens)
    return _choose(folder, early, check_together)


def newest_whole(folder: Path) -> CheckpointChoice | None:
    """Find, alone, what `load_newest` would take.

    Raises:
        RecipeError: there are checkpoints and none is whole.
    """
    names = (one.name for one in complete_checkpoints(folder))
    return _choose(folder, names, check_alone)


def newest_weights(folder: Path, tokens: int | None) -> CheckpointChoice | None:
    """Find, alone, the newest whole checkpoint that has weights: a full one, or weights alone.

    With ``tokens`` those of them alone. Of two of the same tokens the full one is taken.

    Raises:
        RecipeError: there are such and none is whole.
    """
    both = [*complete_checkpoints(folder), *complete_checkpoints(folder, "weights")]
    both = [one for one in both if tokens is None or tokens_of(one) == tokens]
    both.sort(key=tokens_of, reverse=True)  # stable: the full ones stay first
    return _choose(folder, (one.name for one in both), check_alone)


def _choose(folder: Path, names: Iterator[str], check: Check) -> CheckpointChoice | None:
    damaged: list[DamagedCheckpointError] = []
    for name in names:
        try:
            return CheckpointChoice(folder / name, check(folder / name), tuple(damaged))
        except DamagedCheckpointError as error:
            damaged.append(error)
    if damaged:
        newest = damaged[0]
        problem = f"no checkpoint is whole; of the newest {newest.path} {newest.problem}"
        remedy = "put one back from a copy, or begin a new run"
        raise RecipeError(str(folder), problem, remedy)
    return None


def check_alone(checkpoint: Path) -> Marker:
    """Compare all of a checkpoint's bytes with its marker.

    Raises:
        DamagedCheckpointError: a file is missing, or its contents are not what was written.
        RecipeError: it has another format, or a file too many.
    """
    marker = read_marker(checkpoint)
    check_sections(checkpoint, marker.files, rank=0, ranks=1)
    return marker


def check_together(checkpoint: Path) -> Marker:
    """Compare as `check_alone` does, every rank its share."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    marker = by_first(lambda: read_marker(checkpoint))
    together(lambda: check_sections(checkpoint, marker.files, rank=rank, ranks=ranks))
    return marker


def set_aside(folder: Path, names: list[str]) -> None:
    """Rename what is damaged, so that nobody takes it and whoever wants to can look at it."""
    for name in names:
        aside = folder / f"damaged-{name}"
        shutil.rmtree(aside, ignore_errors=True)
        (folder / name).rename(aside)


def load_checkpoint(
    checkpoint: Path, marker: Marker, state: State, *, fingerprint: str
) -> RunProgress:
    """Fill weights and optimizer in place from a checkpoint that was found whole.

    Raises:
        RecipeError: its recipe, or its tensors, are those of another model or optimizer; all
            ranks raise it.
    """
    if marker.fingerprint != fingerprint:
        problem = f"is of the recipe {marker.fingerprint}, this one is {fingerprint}"
        remedy = "resume with the recipe that wrote it; action=diff says what differs"
        raise RecipeError(str(checkpoint), problem, remedy)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = sorted(marker.files)[rank::ranks]
    listed = together(lambda: read_pieces(checkpoint, mine))
    pieces = [piece for of_rank in listed for piece in of_rank]
    found = {
        name: tuple(entry.size)
        for name, entry in PieceReader(checkpoint, pieces).entries.items()
    }
    taken: set[str] = set()

    def read(tensors: dict[str, Tensor]) -> None:
        expected = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        together(lambda: _check_alike(checkpoint, expected, found))
        taken.update(expected)
        load(tensors, storage_reader=PieceReader(checkpoint, pieces))

    state.fill(read)
    _check_all_taken(checkpoint, taken, found)
    return marker.progress


Shapes = Mapping[str, tuple[int, ...]]


def _check_alike(checkpoint: Path, expected: Shapes, found: Shapes) -> None:
    for name, shape in sorted(expected.items()):
        if name not in found:
            raise _of_another_model(checkpoint, f"it lacks {name} {shape}")
        if found[name] != shape:
            raise _of_another_model(checkpoint, f"{name} is {found[name]} there, {shape} here")


def _check_all_taken(checkpoint: Path, taken: set[str], found: Shapes) -> None:
    """Ask all ranks: each stage takes its own layers."""
    if left := sorted(set(found).difference(*together(lambda: taken))):
        raise _of_another_model(checkpoint, f"it has {left[0]}, {len(left)} such in all")


def _of_another_model(checkpoint: Path, difference: str) -> RecipeError:
    return RecipeError(
        str(checkpoint),
        f"is of another model or optimizer: {difference}",
        "resume with the recipe that wrote it; action=export and model.init_from take weights "
        "alone",
    )
