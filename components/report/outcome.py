"""What came out of a run, whether it finished or was killed.

A finished run says it in ``results.json``. For any other the journal has to do: its last
loss, and the median step's throughput. What neither holds is ``None``, never a guess.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from components.errors import RecipeError
from components.report.journal import Journal
from components.report.run_folder import Run, Tree, load_run, short_labels

UNFINISHED = "unfinished"
_HOUR_SECONDS = 3_600


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The results of one run; losses in nats per token, ``None`` where nobody knows.

    ``seconds`` are those of all processes of the run together, not of its last one alone.
    """

    status: str
    steps: int
    tokens: int
    training_loss: float | None
    held_out_first: float | None
    held_out_final: float | None
    unigram: float | None
    rising: bool | None
    first_by_source: Mapping[str, float]
    final_by_source: Mapping[str, float]
    unigram_by_source: Mapping[str, float]
    seconds: float | None
    device_hours: float | None
    tokens_per_second: float | None
    tokens_per_second_per_device: float | None
    flops_per_second: Mapping[str, float]
    device: str | None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A run in a report: the name that tells it from the others, and what came out."""

    label: str
    run: Run
    outcome: Outcome


def load_entries(folders: Sequence[Path]) -> tuple[Entry, ...]:
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
    runs = [load_run(folder) for folder in folders]
    return tuple(
        Entry(label=label, run=run, outcome=outcome_of(run))
        for label, run in zip(short_labels(folders), runs, strict=True)
    )


def outcome_of(run: Run) -> Outcome:
    """Take the results as the run stated them, else as its journal shows them."""
    results: Tree = run.results or {}
    held_out: Tree = results.get("held_out") or {}
    journal = run.journal
    measured, rate = journal.held_out, results.get("tokens_per_second", _median_rate(journal))
    held_seconds = journal.goodput.held_seconds or None  # none before the first record
    return Outcome(
        status=results.get("status", UNFINISHED),
        steps=results.get("steps", journal.steps[-1].step if journal.steps else 0),
        tokens=results.get("tokens", journal.steps[-1].tokens if journal.steps else 0),
        training_loss=journal.steps[-1].loss if journal.steps else None,
        held_out_first=held_out.get("first", measured[0].loss if measured else None),
        held_out_final=held_out.get("final", measured[-1].loss if measured else None),
        unigram=held_out.get("unigram"),
        rising=held_out.get("rising"),
        first_by_source=measured[0].by_source if measured else {},
        final_by_source=held_out.get("by_source", measured[-1].by_source if measured else {}),
        unigram_by_source=held_out.get("unigram_by_source") or {},
        seconds=held_seconds,
        device_hours=held_seconds and held_seconds * run.derived["ranks"] / _HOUR_SECONDS,
        tokens_per_second=rate,
        tokens_per_second_per_device=results.get(
            "tokens_per_second_per_device", rate and rate / run.derived["ranks"]
        ),
        flops_per_second=results.get("flops_per_second", _flops_per_second(run, rate)),
        device=results.get("device", run.environment.get("device")),
    )


def _median_rate(journal: Journal) -> float | None:
    rates = [step.tokens_per_second for step in journal.steps]
    return median(rates) if rates else None


def _flops_per_second(run: Run, rate: float | None) -> dict[str, float]:
    if rate is None:
        return {}
    per_token: Tree = run.derived["flops_per_token"]
    return {convention: flops * rate for convention, flops in per_token.items()}


def non_finite_steps(journal: Journal) -> int:
    """Count the steps whose loss is no number: the run has diverged."""
    return sum(not math.isfinite(step.loss) for step in journal.steps)
