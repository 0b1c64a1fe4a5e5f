"""Choose a checkpoint in a folder, and check all of its bytes first; torch is not needed."""

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


def find_checkpoint(
    folder: Path, tokens: int | None, *, weights: bool, section: str = ""
) -> CheckpointChoice:
    """Find the newest whole checkpoint, or the one after ``tokens``, in one process.

    With ``weights``, one of weights alone will do; full ones come first. An error names the
    key ``at_tokens`` of the ``section``.

    Raises:
        RecipeError: there is no such checkpoint, or none is whole.
    """
    complete = list(complete_checkpoints(folder, EITHER if weights else EITHER[:1]))
    candidates = [path for path in complete if tokens in {None, tokens_of(path)}]
    chosen = choose(folder, candidates, check_alone)
    if chosen is not None:
        return chosen
    raise no_checkpoint(folder, tokens, map(tokens_of, complete), section)


def no_checkpoint(
    folder: Path, tokens: int | None, complete: Iterable[int], section: str = ""
) -> RecipeError:
    """Describe that there is no checkpoint, or none after ``tokens``; the nearest are named."""
    saved = sorted(set(complete))
    if tokens is None:
        remedy = f"let it train to its first: {command_line(f'resume={folder.parent}')}"
        return RecipeError("run", f"{folder.parent} has no complete checkpoint", remedy)
    place = bisect(saved, tokens)
    near = " and ".join(f"{one:_}" for one in saved[max(0, place - 1) : place + 1])
    problem = f"{tokens:_} has no checkpoint in {folder}"
    remedy = f"the nearest: {near}" if near else "there is none"
    return RecipeError(f"{section}at_tokens", problem, remedy)


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
