"""Going on from the newest checkpoint that is whole, whatever layout or engine wrote it."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load

from components.checkpoint import metadata
from components.checkpoint.choice import CheckpointChoice, choose
from components.checkpoint.layout import PieceReader, of_another_model, read_pieces
from components.checkpoint.metadata import Marker, RunProgress
from components.checkpoint.saving import MOMENTS, WEIGHTS, State, master_of
from components.checkpoint.sections import check_sections
from components.distributed.collectives import by_first, together
from components.errors import RecipeError


def load_newest(
    folder: Path, state: State, *, fingerprint: str, fresh_step: int | None = None
) -> CheckpointChoice | None:
    """Fill the state from the newest whole checkpoint; damaged ones are set aside.

    Raises:
        RecipeError: on all ranks, none that is there is whole, or it is of another recipe.
    """
    found = _complete_together(folder)
    chosen = choose(folder, found, check_together)
    if chosen is not None:
        load_checkpoint(
            chosen.checkpoint,
            chosen.marker,
            state,
            fingerprint=fingerprint,
            fresh_step=fresh_step,
        )
        by_first(lambda: _set_aside(found[: len(chosen.damaged)]))
    return chosen


def _complete_together(folder: Path) -> list[Path]:
    names = by_first(lambda: [one.name for one in metadata.complete_checkpoints(folder)])
    return [folder / name for name in names]


def _set_aside(checkpoints: Sequence[Path]) -> None:
    """Rename what is damaged, so that nobody takes it and whoever wants to can look at it."""
    for checkpoint in checkpoints:
        aside = checkpoint.with_name(f"damaged-{checkpoint.name}")
        shutil.rmtree(aside, ignore_errors=True)
        checkpoint.rename(aside)


def choose_up_to(folder: Path, tokens: int) -> CheckpointChoice | None:
    """Find the newest whole checkpoint of at most ``tokens``; all ranks call this.

    Raises:
        RecipeError: there are such and none is whole; all ranks raise it.
    """
    early = [one for one in _complete_together(folder) if metadata.tokens_of(one) <= tokens]
    return choose(folder, early, check_together)


def check_together(checkpoint: Path) -> Marker:
    """Compare as `check_alone` does, every rank its share."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    marker = by_first(lambda: metadata.read_marker(checkpoint))
    together(lambda: check_sections(checkpoint, marker.files, rank=rank, ranks=ranks))
    return marker


def load_checkpoint(
    checkpoint: Path,
    marker: Marker,
    state: State,
    *,
    fingerprint: str,
    fresh_step: int | None = None,
) -> RunProgress:
    """Fill weights and optimizer in place from a checkpoint that was found whole.

    From that of ``fresh_step``, or one whose marker says so, the weights alone are taken.

    Raises:
        RecipeError: on all ranks, it is of another recipe, or of another model or optimizer.
    """
    if marker.fingerprint != fingerprint:
        problem = f"is of the recipe {marker.fingerprint}, this one is {fingerprint}"
        remedy = "resume with the recipe that wrote it; action=diff says what differs"
        raise RecipeError(str(checkpoint), problem, remedy)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = sorted(marker.files)[rank::ranks]
    listed = together(lambda: read_pieces(checkpoint, mine))
    reader = PieceReader(checkpoint, [piece for of_rank in listed for piece in of_rank])
    found = {name: tuple(entry.size) for name, entry in reader.entries.items()}
    taken: set[str] = set()

    def read(tensors: dict[str, Tensor]) -> None:
        together(lambda: reader.check_tensors(tensors))
        taken.update(tensors)
        load(tensors, storage_reader=reader)

    fresh = marker.fresh_optimizer or marker.progress.step == fresh_step
    state.fill(read, found, fresh_optimizer=fresh)
    # All ranks are asked: each stage takes its own layers, and a master counts for its weight.
    unread = {name for name in found if master_of(name.removeprefix(WEIGHTS)) in found}
    unread |= {name for name in found if fresh and name.startswith(MOMENTS)}
    if left := sorted((set(found) - unread).difference(*together(lambda: taken))):
        raise of_another_model(checkpoint, f"it has {left[0]}, {len(left)} such in all")
    return marker.progress
