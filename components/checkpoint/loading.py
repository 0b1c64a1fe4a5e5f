"""Load the newest whole checkpoint, written by any layout or engine."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load

from components.checkpoint import metadata
from components.checkpoint.choice import CheckpointChoice, choose_checkpoint
from components.checkpoint.layout import PieceReader, of_another_model, read_pieces
from components.checkpoint.metadata import Marker, RunProgress
from components.checkpoint.saving import MOMENTS, WEIGHTS, State, master_of
from components.checkpoint.sections import check_sections
from components.distributed.collectives import by_first, gather_results
from components.errors import RecipeError


def load_newest(
    folder: Path, state: State, *, fingerprint: str, fresh_step: int | None = None
) -> CheckpointChoice | None:
    """Fill the state from the newest whole checkpoint, and rename newer, damaged checkpoints.

    All ranks raise RecipeError if none is whole, or if the newest is from another recipe.
    """
    checkpoints = _complete_together(folder)
    chosen = choose_checkpoint(folder, checkpoints, check_together)
    if chosen is not None:
        load_checkpoint(
            chosen.checkpoint,
            chosen.marker,
            state,
            fingerprint=fingerprint,
            fresh_step=fresh_step,
        )
        by_first(lambda: _set_aside(checkpoints[: len(chosen.damaged)]))
    return chosen


def _complete_together(folder: Path) -> list[Path]:
    names = by_first(lambda: [path.name for path in metadata.complete_checkpoints(folder)])
    return [folder / name for name in names]


def _set_aside(checkpoints: Sequence[Path]) -> None:
    """Rename damaged checkpoints: no run loads them, and a user can inspect them."""
    for checkpoint in checkpoints:
        target = checkpoint.with_name(f"damaged-{checkpoint.name}")
        shutil.rmtree(target, ignore_errors=True)
        checkpoint.rename(target)


def choose_up_to(folder: Path, tokens: int) -> CheckpointChoice | None:
    """Find, on all ranks together, the newest whole checkpoint of at most ``tokens``."""
    candidates = [
        path for path in _complete_together(folder) if metadata.tokens_of(path) <= tokens
    ]
    return choose_checkpoint(folder, candidates, check_together)


def check_together(checkpoint: Path) -> Marker:
    """Verify a checkpoint like `check_alone`. Each rank checks a share of the bytes."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    marker = by_first(lambda: metadata.read_marker(checkpoint))
    gather_results(lambda: check_sections(checkpoint, marker.files, rank=rank, ranks=ranks))
    return marker


def load_checkpoint(
    checkpoint: Path,
    marker: Marker,
    state: State,
    *,
    fingerprint: str,
    fresh_step: int | None = None,
) -> RunProgress:
    """Fill weights and optimizer in place from a whole checkpoint.

    Only weights are loaded at step ``fresh_step``, or if the marker has ``fresh_optimizer``.
    All ranks raise RecipeError for another recipe, model or optimizer.
    """
    if marker.fingerprint != fingerprint:
        problem = f"has the recipe fingerprint {marker.fingerprint}, expected {fingerprint}"
        remedy = "resume with the recipe that wrote it; action=diff shows the differences"
        raise RecipeError(str(checkpoint), problem, remedy)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = sorted(marker.files)[rank::ranks]
    listed = gather_results(lambda: read_pieces(checkpoint, mine))
    reader = PieceReader(checkpoint, [piece for of_rank in listed for piece in of_rank])
    sizes = {name: tuple(entry.size) for name, entry in reader.entries.items()}
    requested: set[str] = set()

    def read_tensors(tensors: dict[str, Tensor]) -> None:
        gather_results(lambda: reader.check_tensors(tensors))
        requested.update(tensors)
        load(tensors, storage_reader=reader)

    fresh = marker.fresh_optimizer or marker.progress.step == fresh_step
    state.load_tensors(read_tensors, sizes, fresh_optimizer=fresh)
    # Gather the requested names of all ranks, since each pipeline stage reads only its layers.
    # A weight whose master is in the checkpoint need not be read itself.
    unread = {name for name in sizes if master_of(name.removeprefix(WEIGHTS)) in sizes}
    unread |= {name for name in sizes if fresh and name.startswith(MOMENTS)}
    if unknown := sorted((set(sizes) - unread).difference(*gather_results(lambda: requested))):
        raise of_another_model(checkpoint, f"{len(unknown)} extra tensors, first {unknown[0]}")
    return marker.progress
