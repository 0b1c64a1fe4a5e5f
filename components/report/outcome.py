"""Run folders as the report sees them: what was asked, what happened, what came out.

A finished run says it in ``results.json``. For any other the journal has to do: its last
loss, and the median step's throughput. What neither holds is ``None``, never a guess.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import BaseModel

from components.config.schema.start import Start, describe_start
from components.config.validation import read_section
from components.errors import RecipeError
from components.run.folder import RunFolder
from components.run.history import RunHistory, read_journal
from components.run.records import (
    DerivedRecord,
    HeldOutEvaluation,
    HeldOutRecord,
    StatedResults,
    read_checked,
)
from components.run.reported import RecipeRecord, Surroundings

Tree = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run, read once; ``results`` is absent while it trains, or if it was killed."""

    folder: Path
    recipe: Tree
    derived: Tree
    environment: Tree
    journal: RunHistory
    results: Tree | None

    @property
    def start(self) -> str:
        """From which checkpoint it started, in one line; nothing for first weights."""
        section = self.recipe.get("from")
        start = None if section is None else read_section(Start, section, "from")
        rewinds = [one.tokens for one in self.journal.events if one.kind == "rewind"]
        return describe_start(start, rewinds[-1] if rewinds else None)

    @property
    def is_merge(self) -> bool:
        """Whether its checkpoint is an average, so that nothing here trained."""
        return RunFolder(self.folder).merge.is_file()


def load_run(folder: Path) -> Run:
    """Read a run folder.

    Raises:
        RecipeError: the folder is no run, or one of its files cannot be read.
    """
    if not (folder / "recipe.json").is_file():
        problem = "is no run folder: it has no recipe.json"
        raise RecipeError(str(folder), problem, "name a folder that a run wrote")
    results = folder / "results.json"
    stated = read_checked(results, StatedResults, finite=False) if results.exists() else None

    def tree(name: str, kind: type[BaseModel]) -> Tree:
        file, same = folder / name, "the run and this report must be of the same version"
        if not file.exists():
            remedy = "every run writes it at its start: was the folder copied whole?"
            raise RecipeError(str(file), "is missing", remedy)
        return read_checked(file, kind, remedy=same)

    return Run(
        folder=folder,
        recipe=tree("recipe.json", RecipeRecord),
        derived=tree("derived.json", DerivedRecord),
        environment=tree("environment.json", Surroundings),
        journal=read_journal(folder),
        results=stated,
    )


def short_labels(folders: Sequence[Path]) -> tuple[str, ...]:
    """Name each folder by as many last parts as tell it apart: whole paths name people."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        labels = tuple("/".join(p[-depth:]) for p in parts)
        if len(set(labels)) == len(set(parts)):
            break
    return labels


def flat(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted keys; an empty mapping stays a value."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            leaves |= flat(value, f"{name}.")
        else:
            leaves[name] = value
    return leaves


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """The results of one run; losses in nats per token, ``None`` where nobody knows."""

    status: str
    steps: int
    tokens: int
    training_loss: float | None
    held_out: HeldOutRecord
    first_by_source: Mapping[str, float]  # before training
    seconds: float | None  # of all processes of the run together, not of its last one alone
    device_hours: float | None
    tokens_per_second: float | None
    tokens_per_second_per_device: float | None
    flops_per_second: Mapping[str, float]
    device: str | None


@dataclass(frozen=True, kw_only=True)
class ReportEntry:
    """A run in a report: the name that tells it from the others, and what came out."""

    label: str
    run: Run
    outcome: RunOutcome


def load_entries(folders: Sequence[Path]) -> tuple[ReportEntry, ...]:
    """Load the runs of a report, in the order given.

    Raises:
        RecipeError: no folder is given, or the same one twice, or one of them is no run.
    """
    if not folders:
        raise RecipeError("runs", "names no run folder", "give at least one: runs=[FOLDER]")
    resolved = [folder.resolve() for folder in folders]
    for folder in resolved:
        if resolved.count(folder) > 1:
            raise RecipeError("runs", f"names {folder} twice", "name each run folder once")
    runs = zip(short_labels(folders), map(load_run, folders), strict=True)
    return tuple(
        ReportEntry(label=name, run=run, outcome=outcome_of(run)) for name, run in runs
    )


def outcome_of(run: Run) -> RunOutcome:
    """Take the results as the run stated them, else as its journal shows them."""
    results: Tree = run.results or {}
    steps, ranks = run.journal.steps, run.derived["ranks"]
    middle = median(steps.column("tokens_per_second")) if steps else None
    rate = results.get("tokens_per_second", middle)
    per_token = {} if rate is None else run.derived["flops_per_token"]
    flops = {convention: flops * rate for convention, flops in per_token.items()}
    per_device = rate and rate / ranks
    held_seconds = run.journal.goodput.held_seconds or None  # none before the first record
    return RunOutcome(
        status=results.get("status", "merged" if run.is_merge else "unfinished"),
        steps=results.get("steps", steps[-1].step if steps else 0),
        tokens=results.get("tokens", steps[-1].tokens if steps else 0),
        training_loss=steps[-1].loss if steps else None,
        held_out=_held_out(results, run.journal.held_out),
        first_by_source=next((m.by_source for m in run.journal.held_out if not m.step), {}),
        seconds=held_seconds,
        device_hours=held_seconds and held_seconds * ranks / 3_600,
        tokens_per_second=rate,
        tokens_per_second_per_device=results.get("tokens_per_second_per_device", per_device),
        flops_per_second=results.get("flops_per_second", flops),
        device=results.get("device", run.environment.get("device")),
    )


def _held_out(results: Tree, measured: Sequence[HeldOutEvaluation]) -> HeldOutRecord:
    """Take the stated losses, else the journal's; earlier versions stated no step."""
    first = next((one for one in measured if one.step == 0), None)
    last = next((one for one in reversed(measured) if one.step > 0), None)
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
