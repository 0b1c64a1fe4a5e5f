"""Run export: what a tracker is told of a run, read from the run folder.

Of a step that was taken twice, after a restart or a roll-back, the last counts, as in reports.
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
    """Describe how to get a library before anything is written or sent.

    Raises:
        RecipeError: ``package``, a key of ``tracking`` too, cannot be imported.
    """
    if find_spec(package) is None:
        way = "python -m pip install --require-hashes --no-deps -r requirements/tracking.lock"
        raise RecipeError(f"tracking.{package}", f"{package} is not installed", way)


class MetricsRow(NamedTuple):
    """What was measured at once; ``time`` is in seconds since the epoch."""

    step: int
    time: float
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class RunExport:
    """A run as trackers know it."""

    id: str  # the same after a restart, a resume or a copy of its folder
    name: str
    began: float
    status: str  # "unfinished" while it trains and if it was killed
    recipe: Mapping[str, Any]
    facts: Mapping[str, str]  # in words: which run this is
    ended: float  # the time of the last row
    journal: RunHistory

    @property
    def rows(self) -> Iterator[MetricsRow]:
        """Make the rows one by one, in the order of time, which is that of the steps."""
        return merge(
            _step_rows(self.journal), _held_out_rows(self.journal), key=lambda row: row.time
        )


def tell(folder: Path) -> RunExport:
    """Read the run in ``folder``.

    Raises:
        RecipeError: it is no run folder, a file of it cannot be read, or it has not begun.
    """
    run = load_run(folder)
    recipe, events, held_out = run.recipe, run.journal.events, run.journal.held_out
    last_steps = [run.journal.steps[-1]] if run.journal.steps else []
    times = [one.time for one in (*last_steps, *held_out[-1:])]
    if not times or not events:
        remedy = f"let it take a step: {command_line(f'resume={folder}')}"
        raise RecipeError("run", f"{folder} has measured nothing yet", remedy)
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
        journal=run.journal,
    )


def _step_rows(journal: RunHistory) -> Iterator[MetricsRow]:
    for step in journal.steps:
        figures = step.model_dump(exclude={"kind", "step", "time"}, exclude_none=True)
        yield MetricsRow(step.step, step.time, figures)


def _held_out_rows(journal: RunHistory) -> Iterator[MetricsRow]:
    for one in journal.held_out:
        losses = {f"held_out_by_source/{name}": loss for name, loss in one.by_source.items()}
        if one.weighted_loss is not None:  # earlier versions had none
            losses["held_out"] = one.weighted_loss
        yield MetricsRow(one.step, one.time, {"held_out_unweighted": one.loss, **losses})
