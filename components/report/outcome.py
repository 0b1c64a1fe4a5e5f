"""Run outcome: a run folder's recipe, events and results as the report uses them.

A finished run has ``results.json``. Otherwise the history provides the last loss and the median
step's throughput. A value that is in neither is ``None``, not an estimate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import BaseModel

from components.config.schema.earlier_names import update_names
from components.config.schema.start import Start, describe_start
from components.config.validation import read_section
from components.errors import RecipeError
from components.json_file import read_mapping
from components.run.folder import RunFolder
from components.run.history import RunHistory, read_history
from components.run.records import (
    DerivedRecord,
    HeldOutEvaluation,
    HeldOutRecord,
    StatedResults,
    check_record,
    read_checked,
)
from components.run.reported import RecipeRecord, Surroundings

JsonTree = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Run:
    """Contents of a run folder. ``results`` is absent while it trains, or if it was killed."""

    folder: Path
    recipe: JsonTree
    derived: JsonTree
    environment: JsonTree
    history: RunHistory
    results: JsonTree | None

    @property
    def start_text(self) -> str:
        """One-line description of the start checkpoint; empty for initialized weights."""
        section = self.recipe.get("from")
        start = None if section is None else read_section(Start, section, "from")
        rewinds = [event.tokens for event in self.history.events if event.kind == "rewind"]
        return describe_start(start, rewinds[-1] if rewinds else None)

    @property
    def is_merge(self) -> bool:
        """Whether the checkpoint is an average, so that this folder contains no training."""
        return RunFolder(self.folder).merge.is_file()


def load_run(folder: Path) -> Run:
    """Read a run folder; RecipeError if it is no run, or one of its files cannot be read."""
    if not (folder / "recipe.json").is_file():
        problem = "not a run folder: recipe.json is missing"
        raise RecipeError(str(folder), problem, "use the folder of a run")
    results = folder / "results.json"
    stated = read_checked(results, StatedResults, finite=False) if results.exists() else None

    def read_tree(name: str, kind: type[BaseModel]) -> JsonTree:
        file, same = folder / name, "the run and this report must be of the same version"
        if not file.exists():
            remedy = "a run writes this file at its start; copy the complete folder"
            raise RecipeError(str(file), "is missing", remedy)
        tree = update_names(read_mapping(file, remedy=same))
        check_record(tree, kind, str(file), same)
        return tree

    return Run(
        folder=folder,
        recipe=read_tree("recipe.json", RecipeRecord),
        derived=read_tree("derived.json", DerivedRecord),
        environment=read_tree("environment.json", Surroundings),
        history=read_history(folder),
        results=stated,
    )


def short_labels(folders: Sequence[Path]) -> tuple[str, ...]:
    """Return the shortest distinct path suffixes. Whole paths would contain user names."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        labels = tuple("/".join(p[-depth:]) for p in parts)
        if len(set(labels)) == len(set(parts)):
            break
    return labels


def flatten_tree(tree: JsonTree, prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted keys. An empty mapping stays a value."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            leaves |= flatten_tree(value, f"{name}.")
        else:
            leaves[name] = value
    return leaves


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """The results of one run. Losses are in nats per token, and ``None`` if unknown."""

    status: str
    steps: int
    tokens: int
    training_loss: float | None
    held_out: HeldOutRecord
    first_by_source: Mapping[str, float]  # before training
    seconds: float | None  # of all processes of the run, not only the last
    device_hours: float | None
    tokens_per_second: float | None
    tokens_per_second_per_device: float | None
    flops_per_second: Mapping[str, float]
    device: str | None


@dataclass(frozen=True, kw_only=True)
class ReportEntry:
    """A run in a report, with a distinct label and its outcome."""

    label: str
    run: Run
    outcome: RunOutcome


def load_entries(folders: Sequence[Path]) -> tuple[ReportEntry, ...]:
    """Load the runs of a report, in the given order; refuse a run that is given twice."""
    if not folders:
        raise RecipeError("runs", "the list is empty", "set at least one: runs=[FOLDER]")
    resolved = [folder.resolve() for folder in folders]
    for folder in resolved:
        if resolved.count(folder) > 1:
            raise RecipeError("runs", f"lists {folder} twice", "list each run folder once")
    runs = zip(short_labels(folders), map(load_run, folders), strict=True)
    return tuple(
        ReportEntry(label=name, run=run, outcome=outcome_of(run)) for name, run in runs
    )


def outcome_of(run: Run) -> RunOutcome:
    """Return the results that the run recorded, else values from its history."""
    results: JsonTree = run.results or {}
    steps, ranks = run.history.steps, run.derived["ranks"]
    middle = median(steps.copy_column("tokens_per_second")) if steps else None
    rate = results.get("tokens_per_second", middle)
    per_token = {} if rate is None else run.derived["flops_per_token"]
    flops = {convention: flops * rate for convention, flops in per_token.items()}
    per_device = rate and rate / ranks
    held_seconds = run.history.goodput.held_seconds or None  # none before the first record
    return RunOutcome(
        status=results.get("status", "merged" if run.is_merge else "unfinished"),
        steps=results.get("steps", steps[-1].step if steps else 0),
        tokens=results.get("tokens", steps[-1].tokens if steps else 0),
        training_loss=steps[-1].loss if steps else None,
        held_out=_held_out(results, run.history.held_out),
        first_by_source=next((m.by_source for m in run.history.held_out if not m.step), {}),
        seconds=held_seconds,
        device_hours=held_seconds and held_seconds * ranks / 3_600,
        tokens_per_second=rate,
        tokens_per_second_per_device=results.get("tokens_per_second_per_device", per_device),
        flops_per_second=results.get("flops_per_second", flops),
        device=results.get("device", run.environment.get("device")),
    )


def _held_out(results: JsonTree, measured: Sequence[HeldOutEvaluation]) -> HeldOutRecord:
    """Return the recorded losses, else the history's. Earlier versions recorded no step."""
    first = next((evaluation for evaluation in measured if evaluation.step == 0), None)
    last = next((evaluation for evaluation in reversed(measured) if evaluation.step > 0), None)
    if results.get("held_out"):
        stated = HeldOutRecord.model_validate(results["held_out"])
        if stated.step is not None or not stated.by_source or last is None:
            return stated
        return stated.model_copy(update={"step": last.step, "tokens": last.tokens})
    figures: dict[str, Any] = {}
    if first is not None:
        figures |= {"first": first.weighted_loss, "first_unweighted": first.loss}
        figures["shares"] = first.shares
    if last is not None:
        figures |= {"final": last.weighted_loss, "final_unweighted": last.loss}
        keys = ("step", "tokens", "by_source", "shares")
        figures |= {key: getattr(last, key) for key in keys}
    return HeldOutRecord.model_validate(figures)
