"""Choice of a checkpoint in a folder, after a check of all its bytes. Works without torch.

A checkpoint is whole if all its bytes match the digests in its marker.
"""

from bisect import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from components.checkpoint.metadata import (
    EITHER,
    DamagedCheckpointError,
    Marker,
    complete_checkpoints,
    read_marker,
    tokens_of,
)
from components.checkpoint.sections import check_sections
from components.command_line import command_line
from components.errors import RecipeError


@dataclass(frozen=True)
class CheckpointChoice:
    """The newest whole checkpoint, and the errors of newer, damaged checkpoints."""

    checkpoint: Path
    marker: Marker
    damaged: tuple[DamagedCheckpointError, ...]


def newest_whole(folder: Path) -> CheckpointChoice | None:
    """Find the newest whole checkpoint, in one process; RecipeError if all are damaged."""
    return choose_checkpoint(folder, complete_checkpoints(folder), check_alone)


def find_checkpoint(
    folder: Path, tokens: int | None, *, weights: bool, section: str = ""
) -> CheckpointChoice:
    """Find the newest whole checkpoint, or the checkpoint at ``tokens``, in one process.

    With ``weights``, weights-only checkpoints are allowed; a full one of the same token count
    comes first. RecipeError names ``at_tokens``, with the prefix ``section``, if none is whole.
    """
    complete = list(complete_checkpoints(folder, EITHER if weights else EITHER[:1]))
    candidates = [path for path in complete if tokens in {None, tokens_of(path)}]
    chosen = choose_checkpoint(folder, candidates, check_alone)
    if chosen is not None:
        return chosen
    raise no_checkpoint(folder, tokens, map(tokens_of, complete), section)


def no_checkpoint(
    folder: Path, tokens: int | None, complete: Iterable[int], section: str = ""
) -> RecipeError:
    """Return the error for a missing checkpoint. With ``tokens``, it names the nearest ones."""
    saved = sorted(set(complete))
    if tokens is None:
        remedy = f"train to its first checkpoint: {command_line(f'resume={folder.parent}')}"
        return RecipeError("run", f"{folder.parent} has no complete checkpoint", remedy)
    place = bisect(saved, tokens)
    near = " and ".join(f"{count:_}" for count in saved[max(0, place - 1) : place + 1])
    problem = f"no checkpoint at {tokens:_} tokens in {folder}"
    remedy = f"nearest checkpoints: {near}" if near else "the folder has no checkpoint"
    return RecipeError(f"{section}at_tokens", problem, remedy)


def choose_checkpoint(
    folder: Path, checkpoints: Iterable[Path], check: Callable[[Path], Marker]
) -> CheckpointChoice | None:
    """Return the first checkpoint that passes, None without any; RecipeError if none passes."""
    damaged: list[DamagedCheckpointError] = []
    for checkpoint in checkpoints:
        try:
            return CheckpointChoice(checkpoint, check(checkpoint), tuple(damaged))
        except DamagedCheckpointError as error:
            damaged.append(error)
    if damaged:
        newest = damaged[0]
        problem = f"all checkpoints are damaged; in the newest, {newest.path} {newest.problem}"
        remedy = "restore a checkpoint from a copy, or start a new run"
        raise RecipeError(str(folder), problem, remedy)
    return None


def check_alone(checkpoint: Path) -> Marker:
    """Verify all bytes of a checkpoint against its marker, in one process.

    Raises DamagedCheckpointError for missing or changed files, RecipeError for an unknown
    format or an extra file.
    """
    marker = read_marker(checkpoint)
    check_sections(checkpoint, marker.files, rank=0, ranks=1)
    return marker
