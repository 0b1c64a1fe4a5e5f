"""Typed records of a run folder for the report, which also shows runs of other versions."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from components.run.records import EnvironmentRecord, Finite, Natural, RunRecord, Texts


def _figures(tree: dict[str, Any]) -> dict[str, Any]:
    """Check published figures: nested groups by name, down to mappings with a ``value``."""
    for node in tree.values():
        if not isinstance(node, dict):
            raise ValueError("a figure must be a mapping with a value")
        if "value" not in node:
            _figures(node)
    return tree


ReportedFigures = Annotated[dict[str, Any], AfterValidator(_figures)]


class _Named(RunRecord):
    name: str


class _Electricity(RunRecord):
    power_usage_effectiveness: Finite | None = None
    grams_co2e_per_kwh: Finite | None = None


class _Cluster(_Named):
    electricity: _Electricity = _Electricity()


class _Model(RunRecord):
    mlp: Mapping[str, Any] = {}


class _Budget(RunRecord):
    total_tokens: Annotated[int, Field(gt=0)]


class RecipeRecord(RunRecord):
    """``recipe.json``: the fields needed for the headings of the report and its tables."""

    name: str
    description: str
    model: _Model
    parallelism: dict[str, Any]
    budget: _Budget
    scale: _Named
    cluster: _Cluster
    published: ReportedFigures
    assumed: ReportedFigures


class Surroundings(EnvironmentRecord):
    """``environment.json`` with the device. Older versions have fewer fields."""

    command: Texts = ()
    device: str | None = None


class _Judged(RunRecord):
    loss: float | None
    perplexity: float | None
    bits_per_byte: float | None
    tokens: Natural
    documents: Natural


class _HeldOut(RunRecord):
    by_source: Mapping[str, _Judged] = {}
    by_language: Mapping[str, _Judged] = {}
    all: _Judged
    weighted_as_mixture: float | None = None  # not in earlier versions
    mean_over_sources: float | None = None


class _Task(RunRecord):
    metrics: Mapping[str, float | None]
    samples: Natural
    num_fewshot: Natural


class _Score(RunRecord):
    score: Finite | None  # None if the model diverged
    standard_error: Finite | None
    metric: str
    num_fewshot: Natural
    samples: Natural
    published: Finite | None = None


class _Scores(RunRecord):
    tasks: Mapping[str, _Score]
    mean: Finite | None
    published: Finite | None = None


class EvaluationRecord(RunRecord):
    """``evaluation/CHECKPOINT.json``: evaluation results of a checkpoint."""

    checkpoint: str
    tokens_trained: Natural | None = None
    held_out: _HeldOut = _HeldOut.model_construct()
    texts: Mapping[str, _Judged] = {}
    tasks: Mapping[str, _Task] = {}
    scores: Mapping[str, _Scores] = {}


class _Times(RunRecord):
    seconds: Finite
    forward_seconds: Finite | None = None
    backward_seconds: Finite | None = None
    recomputed_seconds: Finite | None = None


class Profile(RunRecord):
    """``profile/rank-N.json``: breakdown of the time of profiled steps."""

    rank: Natural
    steps: Annotated[tuple[Natural, ...], Field(strict=False)]
    clock: str
    step_seconds: Annotated[Finite, Field(gt=0)]
    parts: Mapping[str, _Times]
    compiler: Mapping[str, Natural] = {}  # graphs and recompiles; not in earlier versions


class _Tokenizer(RunRecord):
    settings: dict[str, Any]
    vocab_size: Natural


class _Totals(RunRecord):
    train_tokens: Natural
    held_out_tokens: Natural
    documents: Natural
    input_bytes: Natural


class _Removed(RunRecord):
    removed: Mapping[str, Natural]


class _Stage(RunRecord):
    sources: Mapping[str, _Removed]


class _Source(RunRecord):
    train_tokens: Natural
    held_out_tokens: Natural
    documents: Natural
    language: str | None
    licence: str | None
    origin: str | None


class DataCard(RunRecord):
    """``card.json`` of prepared data: the fields that a run's report shows."""

    key: str
    totals: _Totals
    stages: Mapping[str, _Stage]
    tokenizer: _Tokenizer
    sources: Mapping[str, _Source]
