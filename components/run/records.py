"""Typed records of a run folder's files: one model per file, with the fields that we read.

Extra fields of a newer version are ignored. Missing fields and wrong types are errors at
reading. Losses may be NaN, rates must be finite.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from components.errors import RecipeError
from components.json_file import COPY_AGAIN, read_mapping

R = TypeVar("R", bound=BaseModel)

Natural = Annotated[int, Field(ge=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Texts = Annotated[tuple[str, ...], Field(strict=False)]
PathText = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*$")]
_SHOWN_ERRORS, _SHOWN_LETTERS = 8, 60


class RunRecord(BaseModel):
    """Base of all records: strict and frozen. Unknown fields come from newer versions."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, defer_build=True)


class DataFolder(RunRecord):
    """``data.json`` as ranks read it: the folder of prepared data, and unigram losses."""

    folder: PathText
    unigram: Mapping[str, float] = {}


class DataRecord(DataFolder):
    """``data.json``: the prepared data that the run reads, with their key."""

    key: str


class EnvironmentRecord(RunRecord):
    """``environment.json``: command and commit of the run. ``command`` is never executed."""

    command: Texts
    commit: str | None = None


class _Parameters(RunRecord):
    total: Annotated[int, Field(gt=0)]
    active: int | None = None
    embedding: Natural | None = None


class DerivedRecord(RunRecord):
    """``derived.json``: numbers derived from the recipe."""

    parameters: _Parameters
    tokens_per_step: Natural
    steps: Natural
    ranks: Annotated[int, Field(gt=0)]
    flops_per_token: Mapping[str, Finite]
    fingerprint: str | None = None


class HeldOutRecord(RunRecord):
    """Held-out losses: ``first`` before training, ``final`` at the last later evaluation.

    Losses are weighted by ``shares``, the mixture's shares at ``step``. ``_unweighted`` losses
    are plain means over sources. None means not evaluated.
    """

    step: Natural | None = None
    tokens: Natural | None = None
    first: float | None = None
    first_unweighted: float | None = None
    final: float | None = None
    final_unweighted: float | None = None
    unigram: float | None = None
    unigram_unweighted: float | None = None
    rising: bool | None = None
    by_source: Mapping[str, float | None] = {}
    shares: Mapping[str, float] = {}
    unigram_by_source: Mapping[str, float] = {}

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, tree: Any) -> Any:
        """Convert records of earlier versions, whose losses are plain means over sources.

        If ``final`` equals ``first``, the only evaluation was before training.
        """
        if not isinstance(tree, Mapping) or "final" not in tree or "final_unweighted" in tree:
            return tree
        first, final = tree.get("first"), tree["final"]
        untrained, no_slope = final == first, tree.get("slope_last_quarter") == 0.0
        return {
            **tree,
            **dict.fromkeys(("first", "final", "unigram")),
            "first_unweighted": first,
            "final_unweighted": None if untrained else final,
            "unigram_unweighted": tree.get("unigram"),
            "by_source": {} if untrained else tree.get("by_source", {}),
            "rising": None if no_slope else tree.get("rising"),
        }


class _MergedPart(RunRecord):
    tokens: Natural
    checkpoint: str
    coefficient: Finite


class MergeRecord(RunRecord):
    """``merge.json``: the checkpoints of another run that this run's weights average."""

    run: PathText
    average: str
    checkpoints: Annotated[tuple[_MergedPart, ...], Field(strict=False)]


class Ending(RunRecord):
    """``results.json`` for readers that only need the status."""

    status: Literal["finished", "stopped"]
    goes_on: bool = False  # a phase ended, and the run starts the next one by itself


class _CountedBy(RunRecord):
    source: str


class _EnergySources(RunRecord):
    devices: _CountedBy = _CountedBy(source="")
    hosts: _CountedBy = _CountedBy(source="")


class _Drawn(RunRecord):
    promised_share: Finite
    share: Finite
    epochs: Finite


class StatedResults(Ending):
    """``results.json`` as the report reads it, including versions with fewer fields."""

    steps: Natural = 0
    tokens: Natural = 0
    loss: float | None = None
    not_finite: Texts = ()  # keys with non-finite values, written as null
    tokens_per_second: Finite = 0.0
    tokens_per_second_per_device: Finite = 0.0
    flops_per_second: Mapping[str, Finite] = {}
    device: str = ""
    peak_memory_bytes: Finite | None = None
    held_out: HeldOutRecord = HeldOutRecord()
    energy: _EnergySources | None = None
    mixture: Mapping[str, _Drawn] = {}
    compiler: Mapping[str, Natural] = {}  # graphs and recompiles; not in earlier versions


class TimedResults(StatedResults):
    """``results.json`` for readers that need the rate."""

    tokens_per_second: Finite
    device: str


class Results(TimedResults):
    """``results.json`` of this version: status and figures of a run."""

    steps: Natural
    tokens: Natural
    held_out: HeldOutRecord


class FirstFailure(RunRecord):
    """``ranks/first_failure.json``: the error that brought the ranks down."""

    rank: Natural
    message: str
    traceback: str = ""


class Packages(RunRecord):
    """``software.json`` for readers that only compare package versions."""

    python: str
    packages: Mapping[str, str]


class _Timed(RunRecord):
    kind: str
    time: Finite  # end, in seconds since the epoch


class StepLine(_Timed):
    """Fields of a step in all versions. ``tokens`` is the total after the step."""

    step: Natural
    tokens: Natural
    loss: float
    seconds: Finite
    tokens_per_second: Finite


class StepMetrics(StepLine):
    """One optimizer step as this version writes it. Losses are in nats."""

    auxiliary_loss: float
    expert_load: float
    lr: float
    gradient_norm: float
    loss_scale: float
    mtp_loss: float | None = None  # loss of multi-token prediction, if any


class LoggedFigures(_Timed):
    """Values that a user's callback has logged, under its own names."""

    step: Natural
    tokens: Natural


class HeldOutEvaluation(_Timed):
    """One evaluation on the held-out text, in nats per token."""

    step: Natural
    tokens: Natural
    loss: float  # the plain mean over sources
    weighted_loss: float | None = None  # by the shares; not in earlier versions
    by_source: Mapping[str, float]
    shares: Mapping[str, float] = {}
    seconds: Finite


class _Counted(RunRecord):
    joules: Finite | None
    counted_seconds: Finite
    passed_seconds: Finite


class _Energy(_Timed):
    devices: _Counted
    hosts: _Counted


class RunEvent(_Timed):
    """An event of the run. ``step`` and ``tokens`` belong to the weights after the event."""

    step: Natural
    tokens: Natural
    cause: str
    seconds: Finite  # in which the run made no progress
    evidence: Mapping[str, Any]


class _Restarted(RunRecord):
    restart: Natural


class _Restart(RunEvent):
    evidence: _Restarted  # type: ignore[assignment]  # read as a mapping: this only checks it


LINE_KINDS: Mapping[str, type[_Timed]] = {
    "step": StepLine,
    "held_out": HeldOutEvaluation,
    "logged": LoggedFigures,
    "energy": _Energy,
    "restart": _Restart,
}


def read_record(
    file: Path, kind: type[R], *, finite: bool = True, remedy: str = COPY_AGAIN
) -> R:
    """Read and check a file of a run folder."""
    tree = read_mapping(file, finite=finite, remedy=remedy)
    return check_record(tree, kind, str(file), remedy)


def read_checked(
    file: Path, kind: type[BaseModel], *, finite: bool = True, remedy: str = COPY_AGAIN
) -> dict[str, Any]:
    """Return the whole content of a file, checked like :func:`read_record`."""
    tree = read_mapping(file, finite=finite, remedy=remedy)
    check_record(tree, kind, str(file), remedy)
    return tree


def check_record(tree: Mapping[str, Any], kind: type[R], where: str, remedy: str) -> R:
    """Validate a mapping from the file or line ``where`` as a record of ``kind``."""
    try:
        return kind.model_validate(tree)
    except ValidationError as failure:
        errors = failure.errors()
    sentences = [_sentence(error) for error in errors[:_SHOWN_ERRORS]]
    if (more := len(errors) - _SHOWN_ERRORS) > 0:
        sentences.append(f"and {more} more")
    raise RecipeError(where, "; ".join(sentences), remedy)


def _sentence(error: Any) -> str:
    key = ".".join(str(step)[:_SHOWN_LETTERS] for step in error["loc"])
    if error["type"] == "missing":
        return f"{key} is missing"
    message, value = error["msg"], repr(error["input"])
    shown = value if len(value) <= _SHOWN_LETTERS else f"{value[:_SHOWN_LETTERS]}..."
    return f"{key}: {message[0].lower()}{message[1:]}, got {shown}"
