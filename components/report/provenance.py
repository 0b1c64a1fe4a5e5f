"""Published, measured, assumed: three kinds of figure that the report never mixes.

A published figure stands beside the run's own only if it is the same quantity, by name.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from components.report import numbers
from components.report.outcome import ReportEntry, Tree, flat
from components.report.tables import Grid, column_labels

_DAY_SECONDS = 86_400
_Published = tuple[str, str, str, str]  # quantity, value, unit, source

# First match wins; a name's suffix is its unit.
_UNITS = (
    ("tokens_per_second_per_device", "tokens/s"),
    ("tokens_per_second", "tokens/s"),
    ("flops_per_second", "FLOP/s"),
    ("flops_per_token", "FLOP"),
    ("_seconds", "s"),
    ("_hours", "h"),
    ("_kwh", "kWh"),
    ("days", "d"),
    ("_bytes", "B"),
    ("loss", "nats/token"),
    ("parameters", "parameters"),
    ("tokens", "tokens"),
)


def is_miniature(entry: ReportEntry) -> bool:
    """Return whether the run is the recipe made small, so that no figure compares directly."""
    return isinstance(entry.run.recipe["scale"].get("shrink"), Mapping)


def published_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Lay out every published figure beside what each run measured of the same quantity."""
    own = [dict.fromkeys(_published(entry.run.recipe["published"])) for entry in entries]
    measured = [_measured_quantities(entry) for entry in entries]
    rows = []
    for key in dict.fromkeys(key for figures in own for key in figures):
        name, value, unit, source = key
        cells = (
            _beside(name, quantities) if key in figures else numbers.ABSENT
            for figures, quantities in zip(own, measured, strict=True)
        )
        title = name.replace("_", " ").replace(".", ": ")
        rows.append((title, f"{value} {unit}".strip(), source, *cells))
    heads = (
        f"{label}, miniature" if is_miniature(entry) else label
        for label, entry in zip(column_labels(entries), entries, strict=True)
    )
    return Grid(columns=("quantity", "published", "source", *heads), rows=rows)


def assumed_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Lay out every assumed value with its reason and, of several runs, who assumes it."""
    holders: dict[tuple[str, str, str], list[str]] = {}
    for entry in entries:
        for name, leaf in _named(entry.run.recipe["assumed"], ""):
            key = (name, numbers.exact(leaf["value"]), str(leaf.get("reason", "")))
            holders.setdefault(key, []).append(entry.label)
    if len(entries) == 1:
        return Grid(columns=("key", "value", "reason"), rows=list(holders))
    rows = [
        (*key, "all runs" if len(labels) == len(entries) else ", ".join(labels))
        for key, labels in holders.items()
    ]
    return Grid(columns=("key", "value", "reason", "assumed by"), rows=rows)


def _published(tree: Tree) -> Iterator[_Published]:
    """Give every published figure, of a mapping each part."""
    for name, leaf in _named(tree, ""):
        value = leaf["value"]
        parts = flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
        for part, number in parts.items():
            source = str(leaf.get("source", ""))
            yield part, numbers.exact(number), str(leaf.get("unit", "")), source


def _named(tree: Tree, prefix: str) -> Iterator[tuple[str, Tree]]:
    """Walk to the mappings that carry a value; what lies above them are groups."""
    for key, node in tree.items():
        if "value" in node:
            yield f"{prefix}{key}", node
        else:
            yield from _named(node, f"{prefix}{key}.")


def _measured_quantities(entry: ReportEntry) -> dict[str, float]:
    """Collect what the run itself can state, under the names a recipe would publish it."""
    run, out = entry.run, entry.outcome
    named: dict[str, Any] = {
        **flat(run.derived),
        "parameters": run.derived["parameters"].get("total"),
        "devices": run.derived["ranks"],
        "steps": out.steps,
        "tokens": out.tokens,
        "total_tokens": out.tokens,
        "held_out_loss": out.held_out_final,
        "training_loss": out.training_loss,
        "tokens_per_second": out.tokens_per_second,
        "tokens_per_second_per_device": out.tokens_per_second_per_device,
        **{f"flops_per_second.{c}": rate for c, rate in out.flops_per_second.items()},
    }
    if out.seconds is not None:
        named["device_hours"] = out.device_hours
        named["days"] = out.seconds / _DAY_SECONDS
    devices = run.journal.energy.get("devices")
    if devices is not None and devices.is_whole:
        named["energy_kwh"] = devices.kwh
    if run.journal.steps:
        named["step_seconds"] = median(step.seconds for step in run.journal.steps)
    return {
        name.replace(".", "_"): value
        for name, value in named.items()
        if isinstance(value, int | float)
    }


def _beside(name: str, quantities: Mapping[str, float]) -> str:
    """Find the quantity by its full name, else by its last part (``time.step_seconds``)."""
    for candidate in (name.replace(".", "_"), name.rpartition(".")[2]):
        if candidate in quantities:
            unit = next((unit for part, unit in _UNITS if part in candidate), "")
            return f"{numbers.measured(quantities[candidate])} {unit}".strip()
    return numbers.ABSENT
