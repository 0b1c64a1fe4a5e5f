"""What a tracker is told of a run, all of it read from the run folder.

Of a step that was taken twice, after a restart or a roll-back, the last time counts: what led
to the last weights is told, as in the report.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from components.errors import RecipeError
from components.report.journal import HeldOut, Journal, Step
from components.report.run_folder import load_run

ID_DIGITS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What was measured at once; ``time`` is in seconds since the epoch."""

    step: int
    time: float
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Told:
    """A run as trackers know it.

    ``id`` is the run's own: the same after a restart, a resume or a copy of its folder.
    ``facts`` say in words which run this is. ``rows`` are in the order of time, which is that
    of the steps. ``status`` is ``unfinished`` while it trains and if it was killed.
    """

    id: str
    name: str
    began: float
    status: str
    recipe: Mapping[str, Any]
    facts: Mapping[str, str]
    rows: tuple[Row, ...]


def tell(folder: Path) -> Told:
    """Read the run in ``folder``.

    Raises:
        RecipeError: it is no run folder, a file of it cannot be read, or it has not begun.
    """
    run = load_run(folder)
    journal, recipe = run.journal, run.recipe
    rows = tuple(sorted(_rows(journal), key=lambda row: row.time))
    if not rows or not journal.events:
        remedy = f"let it take a step: python run.py resume={folder}"
        raise RecipeError("run", f"{folder} has measured nothing yet", remedy)
    began, fingerprint = journal.events[0].time, str(run.derived.get("fingerprint"))
    status = run.results["status"] if run.results else "unfinished"
    facts = {
        "recipe": recipe["name"],
        "scale": recipe["scale"]["name"],
        "cluster": recipe["cluster"]["name"],
        "fingerprint": fingerprint,
        "commit": run.environment.get("commit") or "none",
        "status": status,
    }
    return Told(
        id=sha256(f"{fingerprint} {began!r}".encode()).hexdigest()[:ID_DIGITS],
        name=folder.resolve().name,
        began=began,
        status=status,
        recipe=recipe,
        facts=facts,
        rows=rows,
    )


def _rows(journal: Journal) -> Iterator[Row]:
    for step in journal.steps:
        yield Row(step=step.step, time=step.time, values=_figures(step))
    for one in journal.held_out:
        yield Row(step=one.step, time=one.time, values=_losses(one))


def _figures(step: Step) -> dict[str, float]:
    return {key: value for key, value in asdict(step).items() if key not in {"step", "time"}}


def _losses(one: HeldOut) -> dict[str, float]:
    by_source = {f"held_out_by_source/{name}": loss for name, loss in one.by_source.items()}
    return {"held_out": one.loss, **by_source}
