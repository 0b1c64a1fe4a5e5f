"""Run export: the data that a tracker gets from a run folder.

If a step was repeated after a restart or a rollback, the last one counts, as in reports.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from heapq import merge
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from components.command_line import command_line
from components.errors import RecipeError
from components.report.outcome import load_run
from components.run.history import RunHistory


def check_installed(package: str) -> None:
    """Check that ``package``, also a key of ``tracking``, is installed, before any write."""
    if find_spec(package) is None:
        command = (
            "python -m pip install --require-hashes --no-deps -r requirements/tracking.lock"
        )
        raise RecipeError(f"tracking.{package}", f"{package} is not installed", command)


class MetricsRow(NamedTuple):
    """Values measured at the same time. ``time`` is in seconds since the epoch."""

    step: int
    time: float
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class RunExport:
    """Run in the form that trackers use."""

    id: str  # the same after a restart, a resume or a copy of the folder
    name: str
    began: float
    status: str  # "unfinished" while it trains and if it was killed
    recipe: Mapping[str, Any]
    facts: Mapping[str, str]  # texts that identify the run
    ended: float  # the time of the last row
    history: RunHistory

    @property
    def metrics_rows(self) -> Iterator[MetricsRow]:
        """Yield the rows in the order of time, which is the order of steps."""
        return merge(
            _step_rows(self.history), _held_out_rows(self.history), key=lambda row: row.time
        )


def read_run_export(folder: Path) -> RunExport:
    """Read the run in ``folder``; RecipeError if there are no steps yet."""
    run = load_run(folder)
    recipe, events, held_out = run.recipe, run.history.events, run.history.held_out
    last_steps = [run.history.steps[-1]] if run.history.steps else []
    times = [record.time for record in (*last_steps, *held_out[-1:])]
    if not times or not events:
        remedy = f"train at least one step: {command_line(f'resume={folder}')}"
        raise RecipeError("run", f"{folder} has no measurements yet", remedy)
    began, fingerprint = events[0].time, str(run.derived.get("fingerprint"))
    status = run.results["status"] if run.results else "unfinished"
    facts = {
        "recipe": recipe["name"],
        "scale": recipe["scale"]["name"],
        "cluster": recipe["cluster"]["name"],
        "fingerprint": fingerprint,
        "commit": run.environment.get("commit") or "none",
        "status": status,
    }
    return RunExport(
        id=sha256(f"{fingerprint} {began!r}".encode()).hexdigest()[:16],
        name=folder.resolve().name,
        began=began,
        status=status,
        recipe=recipe,
        facts=facts,
        ended=max(times),
        history=run.history,
    )


def _step_rows(history: RunHistory) -> Iterator[MetricsRow]:
    for step in history.steps:
        figures = step.model_dump(exclude={"kind", "step", "time"}, exclude_none=True)
        yield MetricsRow(step.step, step.time, figures)


def _held_out_rows(history: RunHistory) -> Iterator[MetricsRow]:
    for evaluation in history.held_out:
        losses = {
            f"held_out_by_source/{name}": loss for name, loss in evaluation.by_source.items()
        }
        if evaluation.weighted_loss is not None:  # absent in earlier versions
            losses["held_out"] = evaluation.weighted_loss
        yield MetricsRow(
            evaluation.step, evaluation.time, {"held_out_unweighted": evaluation.loss, **losses}
        )
