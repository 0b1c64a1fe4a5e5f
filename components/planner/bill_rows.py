"""The rows of the plan's table that say how long a run takes and when it is over."""

from collections.abc import Mapping
from datetime import MAXYEAR, datetime, timedelta
from typing import Any

from components.planner.digits import significant

PARTS = (
    ("useful_days", "steps"),
    ("checkpoint_days", "checkpoints, which stop the run"),
    ("evaluation_days", "evaluations"),
    ("failure_days", "failures"),
    ("chain_days", "starting jobs and handing over"),
)


def bill_rows(bill: Mapping[str, Any], now: datetime | None) -> list[tuple[str, str]]:
    """Return label and text of each row; ``bill`` is that of the JSON object."""
    rows = [("days, without waiting", f"{bill['days']:.3g}{_jobs(bill)}")]
    for key, label in PARTS:
        if bill[key] is not None:
            rows.append((f"  {label}", f"{bill[key]:.3g}{_count(bill, key)}"))
    if (saving := _saving(bill)) is not None:
        rows.append(("checkpoints every", saving))
    if bill["waiting_days"]:
        rows.append(("waiting in queues", f"{bill['waiting_days']:.3g} days"))
    if now is not None:
        rows.append(("finish if it starts now", _end(now, bill["days"] + bill["waiting_days"])))
    return rows


def _end(now: datetime, days: float) -> str:
    """Name the minute in which it ends, if it does before the calendar."""
    try:
        return f"{now + timedelta(days=days):%Y-%m-%d %H:%M}"
    except OverflowError:
        return f"after the year {MAXYEAR}"


def _jobs(bill: Mapping[str, Any]) -> str:
    return f", {bill['jobs']:,} jobs of {bill['queue']}" if bill["jobs"] else ""


def _count(bill: Mapping[str, Any], key: str) -> str:
    """Say how many there are of what a part counts."""
    if key == "useful_days":
        return f", {bill['steps']:,} steps"
    if key == "failure_days":
        return f", {bill['failures']['count']:.3g} failures"
    name = {"checkpoint_days": "checkpoints", "evaluation_days": "evaluations"}.get(key)
    return f", {bill[name]['count']:,} of them" if name else ""


def _saving(bill: Mapping[str, Any]) -> str | None:
    saving = bill["checkpoints"]
    size = significant(saving["bytes"] / 1e9)
    own = f"{saving['interval_seconds'] / 60:.3g} min, {size} GB each"
    if saving["best_interval_seconds"] is None:
        return own
    best = f"{saving['best_interval_seconds'] / 60:.3g} min"
    return f"{own}; best {best}, checkpoint.every_tokens={saving['best_every_tokens']:_}"
