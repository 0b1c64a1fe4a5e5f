"""Checkpoint metadata (the marker): a small JSON file, written last, validated when read.

A folder without a marker is not a checkpoint. The marker contains the digest of every section
of every file, and a digest of itself against bit flips.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from components.errors import RecipeError
from components.json_file import dump_json, read_mapping, without_nan
from components.run.records import Finite, Natural, RunRecord

FORMAT = 1
MARKER = "progress.json"
# The full state to resume a run, or only its weights.
CheckpointKind = Literal["tokens", "weights"]
EITHER: tuple[CheckpointKind, ...] = ("tokens", "weights")

# A plain file name: a marker must not point outside its folder.
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$")]
_STRICT = ConfigDict(extra="ignore", strict=True, defer_build=True)


class _LossScale(RunRecord):
    scale: Finite
    hysteresis_left: Natural
    good_steps: Natural


class _Figures(RunRecord):
    loss: tuple[float, ...]
    gradient_norm: tuple[float, ...]


class _Guard(RunRecord):
    figures: _Figures
    faults: Mapping[str, tuple[Natural, ...]]
    lowered: tuple[tuple[Natural, Finite], ...]
    skipped: tuple[tuple[Natural, Natural], ...]


def _fields_of(record: type[RunRecord]) -> AfterValidator:
    """Return a validator that checks a mapping against ``record`` and returns the mapping."""

    def check_fields(tree: Mapping[str, Any]) -> Mapping[str, Any]:
        record.model_validate_json(json.dumps(tree))
        return tree

    return AfterValidator(check_fields)


class DamagedCheckpointError(RecipeError):
    """Error for a damaged checkpoint. The previous checkpoint may be used instead."""


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run: its steps, its tokens, and the state of loss scale and guard."""

    __pydantic_config__ = _STRICT

    step: Natural
    tokens: Natural
    loss_scale: Annotated[Mapping[str, Any], _fields_of(_LossScale)] | None = None
    guard: Annotated[Mapping[str, Any], _fields_of(_Guard)] | None = None


class FileSection(NamedTuple):
    """Consecutive bytes of a file that one rank wrote."""

    length: Natural
    sha256: str


Files = Mapping[_Name, tuple[FileSection, ...]]


@dataclass(frozen=True, kw_only=True)
class Marker:
    """Metadata of a checkpoint: its recipe, its progress, and its files."""

    __pydantic_config__ = _STRICT

    kind: CheckpointKind
    fingerprint: str
    progress: RunProgress
    held_out_loss: float | None  # in nats per token; null if not evaluated, or not finite
    files: Files
    fresh_optimizer: bool = False  # a run that resumes from here resets the moments to 0

    @property
    def folder_name(self) -> str:
        return name_of(self.kind, self.progress.tokens)

    @property
    def total_bytes(self) -> int:
        return sum(section.length for sections in self.files.values() for section in sections)

    def to_json(self) -> str:
        tree = without_nan({"format": FORMAT, **asdict(self)})[0]
        if not self.fresh_optimizer:
            del tree["fresh_optimizer"]  # earlier versions can read the marker
        return dump_json(tree | {"sha256": _digest(tree)}, indent=1) + "\n"


_MARKER = TypeAdapter(Marker)


def name_of(kind: CheckpointKind, tokens: int) -> str:
    """Return the name of a checkpoint's folder."""
    return f"{kind}-{tokens:015d}"


def read_marker(checkpoint: Path) -> Marker:
    """Read and validate the marker, but none of the files that it lists.

    Raises DamagedCheckpointError for an unreadable or changed marker, RecipeError for another
    format than this program's.
    """
    file = checkpoint / MARKER
    try:
        tree = read_mapping(file, finite=False)
    except RecipeError as error:
        raise make_damage_error(file, error.problem) from error
    if "format" not in tree:
        raise make_damage_error(file, "is not a checkpoint marker")
    if (written := tree["format"]) != FORMAT:  # first: other formats may have other digests
        problem = f"has format {written}, but this version reads only format {FORMAT}"
        raise RecipeError(str(file), problem, "resume with the version that wrote the run")
    if tree.pop("sha256", None) != _digest(tree):
        raise make_damage_error(file, "was changed after it was written")
    try:
        return _MARKER.validate_json(json.dumps(tree))
    except ValidationError as failure:
        first = failure.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise make_damage_error(file, f"{where}: {first['msg']}") from failure


def make_damage_error(file: Path, problem: str) -> DamagedCheckpointError:
    """Return the error for a damaged checkpoint."""
    remedy = f"remove {file.parent} to use the checkpoint before it"
    return DamagedCheckpointError(str(file), problem, remedy)


def complete_checkpoints(
    folder: Path, kinds: Sequence[CheckpointKind] = ("tokens",)
) -> Iterator[Path]:
    """List checkpoints with a marker, newest first; at equal tokens in order of ``kinds``."""
    named = [
        path
        for kind in kinds
        for path in folder.glob(f"{kind}-*")
        if path.name.removeprefix(f"{kind}-").isdecimal()
    ]
    named.sort(key=tokens_of, reverse=True)  # stable
    return (path for path in named if (path / MARKER).exists())


def tokens_of(checkpoint: Path) -> int:
    """Return the token count of a checkpoint, from its name."""
    return int(checkpoint.name.partition("-")[2])


def list_saved_tokens(folder: Path) -> list[int]:
    """List the token counts of all complete checkpoints, full or weights-only."""
    return sorted({tokens_of(path) for path in complete_checkpoints(folder, EITHER)})


def newest_checkpoint(folder: Path) -> Path | None:
    """Find the newest complete full checkpoint. Its bytes are not verified."""
    return next(complete_checkpoints(folder), None)


def _digest(tree: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
