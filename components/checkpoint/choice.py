"""Choose a checkpoint in a folder, and check all of its bytes first; torch is not needed."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from components.checkpoint.metadata import (
    DamagedCheckpointError,
    Kind,
    Marker,
    complete_checkpoints,
    read_marker,
    tokens_of,
)
from components.checkpoint.sections import check_sections
from components.errors import RecipeError


@dataclass(frozen=True)
class CheckpointChoice:
    """The newest whole checkpoint, and what is wrong with the newer ones."""

    checkpoint: Path
    marker: Marker
    damaged: tuple[DamagedCheckpointError, ...]


def newest_whole(folder: Path) -> CheckpointChoice | None:
    """Find the newest whole checkpoint, in one process.

    Raises:
        RecipeError: there are checkpoints, and none is whole.
    """
    return choose(folder, complete_checkpoints(folder), check_alone)


def checkpoint_of(folder: Path, tokens: int, *, weights: bool) -> CheckpointChoice:
    """Find the checkpoint after ``tokens``; with ``weights``, one of weights alone will do.

    Raises:
        RecipeError: there is no such checkpoint, or it is not whole.
    """
    kinds: tuple[Kind, ...] = ("tokens", "weights") if weights else ("tokens",)
    complete = [path for kind in kinds for path in complete_checkpoints(folder, kind)]
    candidates = [path for path in complete if tokens_of(path) == tokens]
    chosen = choose(folder, candidates, check_alone)
    if chosen is not None:
        return chosen
    known = [f"{count:_}" for count in sorted({tokens_of(path) for path in complete})]
    remedy = f"there are {', '.join(known)}" if known else "there is none"
    raise RecipeError("at_tokens", f"{tokens:_} has no checkpoint in {folder}", remedy)


def newest_weights(folder: Path, tokens: int | None) -> CheckpointChoice | None:
    """Find the newest whole checkpoint, full or of weights alone, or the one after ``tokens``.

    Raises:
        RecipeError: there are such checkpoints, and none is whole.
    """
    both = list(complete_checkpoints(folder))
    both += complete_checkpoints(folder, "weights")
    both = [path for path in both if tokens is None or tokens_of(path) == tokens]
    both.sort(key=tokens_of, reverse=True)  # stable: full checkpoints stay first
    return choose(folder, both, check_alone)


def choose(
    folder: Path, checkpoints: Iterable[Path], check: Callable[[Path], Marker]
) -> CheckpointChoice | None:
    """Return the first checkpoint that passes ``check``; None if ``checkpoints`` is empty.

    Raises:
        RecipeError: there are checkpoints, and none is whole.
    """
    damaged: list[DamagedCheckpointError] = []
    for checkpoint in checkpoints:
        try:
            return CheckpointChoice(checkpoint, check(checkpoint), tuple(damaged))
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
