"""Checkpoint metadata (the marker): a small JSON file, written last, typed when read.

A folder without it is no checkpoint. It has the digest of every section of every file and, as
nobody else would notice a flipped bit in it, one of itself.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from components.errors import RecipeError
from components.json_file import dump_json, read_mapping, without_nan
from components.run.records import Finite, Natural, RunRecord, check_record

FORMAT = 1
MARKER = "progress.json"
Kind = Literal["tokens", "weights"]  # all that a run needs to go on, or its weights alone
EITHER: tuple[Kind, ...] = ("tokens", "weights")

# A plain name: a marker may not lead a reader or a copy out of its folder.
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$")]
_Section = Annotated[tuple[Natural, str], Field(strict=False)]
_Sections = Annotated[tuple[_Section, ...], Field(strict=False)]
_Pair = Annotated[tuple[Natural, Finite], Field(strict=False)]
_Count = Annotated[tuple[Natural, Natural], Field(strict=False)]


class _LossScale(RunRecord):
    scale: Finite
    hysteresis_left: Natural
    good_steps: Natural


class _Figures(RunRecord):
    loss: Annotated[tuple[float, ...], Field(strict=False)]
    gradient_norm: Annotated[tuple[float, ...], Field(strict=False)]


class _Guard(RunRecord):
    figures: _Figures
    faults: Mapping[str, Annotated[tuple[Natural, ...], Field(strict=False)]]
    lowered: Annotated[tuple[_Pair, ...], Field(strict=False)]
    skipped: Annotated[tuple[_Count, ...], Field(strict=False)]


class _Progress(RunRecord):
    step: Natural
    tokens: Natural
    loss_scale: _LossScale | None = None
    guard: _Guard | None = None


class _ProgressRecord(RunRecord):
    """``progress.json``, but for its format and its seal."""

    kind: Kind
    fingerprint: str
    progress: _Progress
    held_out_loss: float | None
    files: Mapping[_Name, _Sections]
    fresh_optimizer: bool = False


class DamagedCheckpointError(RecipeError):
    """Give what is wrong with a checkpoint, where the one before it may be taken instead."""


@dataclass(frozen=True)
class RunProgress:
    """Where a run is on its clock."""

    step: int
    tokens: int
    loss_scale: Mapping[str, Any] | None = None
    guard: Mapping[str, Any] | None = None


class FileSection(NamedTuple):
    """Consecutive bytes of a file, all written by one rank."""

    length: int
    sha256: str


Files = Mapping[str, tuple[FileSection, ...]]


@dataclass(frozen=True, kw_only=True)
class Marker:
    """What a checkpoint is: of which recipe, at which step, in which files."""

    kind: Kind
    fingerprint: str
    progress: RunProgress
    held_out_loss: float | None  # in nats a token; null if none was taken, or not finite
    files: Files
    fresh_optimizer: bool = False  # who goes on from here begins with moments of 0

    @property
    def name(self) -> str:
        return name_of(self.kind, self.progress.tokens)

    @property
    def bytes(self) -> int:
        return sum(one.length for sections in self.files.values() for one in sections)

    def dump(self) -> str:
        tree = without_nan({"format": FORMAT, **asdict(self)})[0]
        if not self.fresh_optimizer:
            del tree["fresh_optimizer"]  # what earlier programs read, they still do
        return dump_json(tree | {"sha256": _digest(tree)}, indent=1) + "\n"


def name_of(kind: Kind, tokens: int) -> str:
    """Name the folder of a checkpoint."""
    return f"{kind}-{tokens:015d}"


def read_marker(checkpoint: Path) -> Marker:
    """Read and check the marker itself, none of the files that it names.

    Raises:
        DamagedCheckpointError: it cannot be read or is not what was written.
        RecipeError: it has another format than this program's.
    """
    file = checkpoint / MARKER
    try:
        tree = read_mapping(file, finite=False)
    except RecipeError as error:
        raise damaged(file, error.problem) from error
    if "format" not in tree:
        raise damaged(file, "is no marker of a checkpoint")
    if (written := tree["format"]) != FORMAT:  # first: who knows how that one is checked
        problem = f"format {written}, but this program writes and reads format {FORMAT}"
        raise RecipeError(str(file), problem, "resume with the version that wrote it")
    if tree.pop("sha256", None) != _digest(tree):
        raise damaged(file, "was changed after it was written")
    try:
        written = check_record(tree, _ProgressRecord, str(file), "")
    except RecipeError as error:
        raise damaged(file, error.problem) from error
    progress, there = written.progress, tree["progress"]
    return Marker(
        kind=written.kind,
        fingerprint=written.fingerprint,
        progress=RunProgress(
            progress.step, progress.tokens, there.get("loss_scale"), there.get("guard")
        ),
        held_out_loss=written.held_out_loss,
        files={
            name: tuple(FileSection(*section) for section in sections)
            for name, sections in written.files.items()
        },
        fresh_optimizer=written.fresh_optimizer,
    )


def damaged(file: Path, problem: str) -> DamagedCheckpointError:
    """Make the error of a checkpoint that is not as it was written."""
    remedy = f"remove {file.parent}: the checkpoint before it is taken then"
    return DamagedCheckpointError(str(file), problem, remedy)


def complete_checkpoints(folder: Path, kinds: Sequence[Kind] = ("tokens",)) -> Iterator[Path]:
    """List those with a marker, newest first, and in the order of ``kinds`` after as many."""
    named = [
        path
        for kind in kinds
        for path in folder.glob(f"{kind}-*")
        if path.name.removeprefix(f"{kind}-").isdecimal()
    ]
    named.sort(key=tokens_of, reverse=True)  # stable
    return (path for path in named if (path / MARKER).exists())


def tokens_of(checkpoint: Path) -> int:
    """Read how far a checkpoint is from its name."""
    return int(checkpoint.name.partition("-")[2])


def kept_tokens(folder: Path) -> list[int]:
    """List after how many tokens a checkpoint was kept, full or of weights alone."""
    return sorted({tokens_of(path) for path in complete_checkpoints(folder, EITHER)})


def newest_checkpoint(folder: Path) -> Path | None:
    """Find the last checkpoint that is complete, whether or not it is whole."""
    return next(complete_checkpoints(folder), None)


def _digest(tree: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
