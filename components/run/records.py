"""The files of a run folder, typed: a model a file, of the fields that our own code reads.

A run folder of a newer version may say more, and that is left alone; what is missing or of
another type is refused before anybody computes with it. Losses may be NaN, rates may not.
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
Place = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*$")]
_SHOWN_ERRORS, _SHOWN_LETTERS = 8, 60


class RunRecord(BaseModel):
    """Strict and frozen; unknown fields are a newer version's."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, defer_build=True)


class DataFolder(RunRecord):
    """``data.json`` as ranks read it: where the prepared data lie, a unigram model's losses."""

    folder: Place
    unigram: Mapping[str, float] = {}


class DataRecord(DataFolder):
    """``data.json``: the prepared data that the run reads, by their key."""

    key: str


class EnvironmentRecord(RunRecord):
    """``environment.json``: what made the run; ``command`` is data, never anybody's words."""

    command: Texts
    commit: str | None = None


class _Parameters(RunRecord):
    total: Annotated[int, Field(gt=0)]
    active: int | None = None
    embedding: Natural | None = None


class DerivedRecord(RunRecord):
    """``derived.json``: numbers that follow from the recipe."""

    parameters: _Parameters
    tokens_per_step: Natural
    steps: Natural
    ranks: Annotated[int, Field(gt=0)]
    flops_per_token: Mapping[str, Finite]
    fingerprint: str | None = None


class HeldOutRecord(RunRecord):
    """Held-out losses: ``first`` before training, ``final`` at the last evaluation after it.

    They are weighted by ``shares``, those of the mixture at ``step``; ``_unweighted`` ones are
    plain means over sources. None where nothing was evaluated.
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
        """Read plain means as such; their only evaluation was the one before training."""
        if not isinstance(tree, Mapping) or "final" not in tree or "final_unweighted" in tree:
            return tree
        first, final = tree.get("first"), tree["final"]
        untrained, untold = final == first, tree.get("slope_last_quarter") == 0.0
        return {
            **tree,
            **dict.fromkeys(("first", "final", "unigram")),
            "first_unweighted": first,
            "final_unweighted": None if untrained else final,
            "unigram_unweighted": tree.get("unigram"),
            "by_source": {} if untrained else tree.get("by_source", {}),
            "rising": None if untold else tree.get("rising"),
        }


class _MergedPart(RunRecord):
    tokens: Natural
    checkpoint: str
    coefficient: Finite


class MergeRecord(RunRecord):
    """``merge.json``: of which checkpoints of a run this one's is the average."""

    run: Place
    average: str
    checkpoints: Annotated[tuple[_MergedPart, ...], Field(strict=False)]


class Ending(RunRecord):
    """``results.json`` for who asks only how a run ended."""

    status: Literal["finished", "stopped"]


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
    """``results.json`` as the report reads it, also of versions that stated less."""

    steps: Natural = 0
    tokens: Natural = 0
    loss: float | None = None
    not_finite: Texts = ()  # keys whose number is none: null stands there
    tokens_per_second: Finite = 0.0
    tokens_per_second_per_device: Finite = 0.0
    flops_per_second: Mapping[str, Finite] = {}
    device: str = ""
    peak_memory_bytes: Finite | None = None
    held_out: HeldOutRecord = HeldOutRecord()
    energy: _EnergySources | None = None
    mixture: Mapping[str, _Drawn] = {}
    compiler: Mapping[str, Natural] = {}  # graphs and recompiles, since they are counted


class TimedResults(StatedResults):
    """``results.json`` for who takes its rate."""

    tokens_per_second: Finite
    device: str


class Results(TimedResults):
    """``results.json`` of this version: how a run ended, with its figures."""

    steps: Natural
    tokens: Natural
    goes_on: bool = False  # a phase ended: the run begins its next one by itself
    held_out: HeldOutRecord


class FirstFailure(RunRecord):
    """``ranks/first_failure.json``: the error that brought the ranks down."""

    rank: Natural
    message: str
    traceback: str = ""


class Packages(RunRecord):
    """``software.json`` for who compares versions of packages alone."""

    python: str
    packages: Mapping[str, str]


class _Timed(RunRecord):
    kind: str
    time: Finite  # seconds since the epoch, when it was over


class StepLine(_Timed):
    """What every version says of a step; ``tokens`` are those seen when it is done."""

    step: Natural
    tokens: Natural
    loss: float
    seconds: Finite
    tokens_per_second: Finite


class StepMetrics(StepLine):
    """One optimizer step, as this version writes it; the loss is in nats."""

    auxiliary_loss: float
    expert_load: float
    lr: float
    gradient_norm: float
    loss_scale: float
    mtp_loss: float | None = None  # of further tokens, where the model predicts some


class LoggedFigures(_Timed):
    """What a callback of the user has logged, under names of its own."""

    step: Natural
    tokens: Natural


class HeldOutEvaluation(_Timed):
    """One evaluation on the held-out text, in nats per token."""

    step: Natural
    tokens: Natural
    loss: float  # the plain mean over sources
    weighted_loss: float | None = None  # by the shares; earlier versions had none
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
    """What befell the run; ``step`` and ``tokens`` are those of the weights after it."""

    step: Natural
    tokens: Natural
    cause: str
    seconds: Finite  # for which the run stood still
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
    """Read and check a file of a run folder.

    Raises:
        RecipeError: it cannot be read, or lacks a field, or has one of another type.
    """
    tree = read_mapping(file, finite=finite, remedy=remedy)
    return check_record(tree, kind, str(file), remedy)


def read_checked(
    file: Path, kind: type[BaseModel], *, finite: bool = True, remedy: str = COPY_AGAIN
) -> dict[str, Any]:
    """Return all that a file holds, checked as :func:`read_record` does."""
    tree = read_mapping(file, finite=finite, remedy=remedy)
    check_record(tree, kind, str(file), remedy)
    return tree


def check_record(tree: Mapping[str, Any], kind: type[R], where: str, remedy: str) -> R:
    """Check a mapping that was read; ``where`` is its file, or its line.

    Raises:
        RecipeError: every field that is missing or of another type.
    """
    try:
        return kind.model_validate(tree)
    except ValidationError as failure:
        errors = failure.errors()
    said = [_sentence(error) for error in errors[:_SHOWN_ERRORS]]
    if (more := len(errors) - _SHOWN_ERRORS) > 0:
        said.append(f"and {more} more")
    raise RecipeError(where, "; ".join(said), remedy)


def _sentence(error: Any) -> str:
    key = ".".join(str(step)[:_SHOWN_LETTERS] for step in error["loc"])
    if error["type"] == "missing":
        return f"{key} is missing"
    message, given = error["msg"], repr(error["input"])
    shown = given if len(given) <= _SHOWN_LETTERS else f"{given[:_SHOWN_LETTERS]}..."
    return f"{key}: {message[0].lower()}{message[1:]}, got {shown}"
