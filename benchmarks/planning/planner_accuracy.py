"""How far are the planner's predictions from measured layouts?

The noise of the measurements is the gap between repeated layouts, and between ZeRO-0 and ZeRO-1
of one layout. The planner's constants were fitted on two node counts; the figures are of the
others. This script fits nothing.

    python -m benchmarks.planning.planner_accuracy
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import groupby
from statistics import median
from typing import Any, TypeVar

import yaml
from scipy.stats import spearmanr

from benchmarks.entry import run_script
from benchmarks.planning.measured import MeasuredLayout, read_rows
from benchmarks.ratios import Ratio
from benchmarks.results_store import ROOT
from components.config.schema.cluster import Hardware
from components.config.validation import read_section
from components.planner.memory import plan_memory, rank_memory
from components.planner.software import SoftwareModel, read_software
from components.planner.time import plan_time

DATA = ROOT / "benchmarks" / "data"
TABLE = DATA / "h100_layouts.csv"
# Limits of medians on layouts that were not used for fitting, relative to the measurements.
MOST_WRONG_FITS, MOST_MEMORY_ERROR, MOST_TIME_ERROR, MOST_REGRET = 0.04, 0.08, 0.12, 0.05
SMALLEST_CELL = 5
FILTER = "runs that ended; without pipelines of the older code, which the campaign replaced"
Predictor = Callable[[MeasuredLayout], float]
Row = TypeVar("Row")


def main() -> None:
    """Print the figures as a JSON object."""
    print(json.dumps(compare_layouts(read_rows(TABLE)), indent=1))


def read_campaign() -> tuple[Hardware, SoftwareModel, list[int]]:
    """Read hardware and software of the measured layouts, and the fitted node counts."""
    campaign = yaml.safe_load((DATA / "h100_layouts.yaml").read_text("utf-8"))
    tree = yaml.safe_load((ROOT / campaign["profile"]).read_text("utf-8"))
    hardware = read_section(Hardware, tree["hardware"], campaign["profile"])
    return hardware, read_software(ROOT / campaign["software"]), campaign["fitted_nodes"]


def compare_layouts(rows: Sequence[MeasuredLayout]) -> dict[str, object]:
    """Compare all rows with predictions for the hardware and software of the campaign."""
    hardware, software, fitted = read_campaign()
    ran = [row for row in rows if row.ran]
    held_out = [row for row in rows if row.nodes not in fitted]
    timed = [row for row in rows if is_timed(row)]
    held_out_timed = [row for row in held_out if is_timed(row)]

    @cache
    def seconds(row: MeasuredLayout) -> float:
        return plan_time(row.job, hardware, software.speed).total_seconds

    def memory_ratio(row: MeasuredLayout) -> float:
        """Divide by the memory of the first rank, which logged it."""
        return rank_memory(row.job, 0, software.memory).peak_bytes / row.reserved_bytes

    return {
        "fitted_nodes": fitted,
        "noise": measure_noise(ran),
        "noise_of_timed": measure_noise(timed),
        "fits": compare_verdicts(held_out, hardware, software),
        "memory": compare_figures(
            [row for row in held_out if row.ran], ran, memory_ratio, measure="reserved"
        ),
        "time": compare_figures(
            held_out_timed, timed, lambda row: seconds(row) / row.seconds, filter=FILTER
        ),
        "scaled": compare_scaled_times(timed, seconds),
        "rank": correlate_order(held_out_timed, seconds),
        "regret": compute_regret(held_out_timed, seconds),
    }


def predicted_ratios() -> list[Ratio]:
    """Return the errors of today's predictions for the measured layouts."""
    figures: Any = compare_layouts(read_rows(TABLE))
    memory, time = figures["memory"], figures["time"]
    errors: dict[str, tuple[float, float | None]] = {
        "new layouts, memory": (memory["median_error"], MOST_MEMORY_ERROR),
        "new layouts, time": (time["median_error"], MOST_TIME_ERROR),
        "new layouts, wrong about what fits": (1 - figures["fits"]["right"], MOST_WRONG_FITS),
        "new layouts, first choice slower than the best": (
            figures["regret"]["median"],
            MOST_REGRET,
        ),
    }
    for nodes, noise in figures["noise_of_timed"].items():
        fitted = ", fitted" if int(nodes) in figures["fitted_nodes"] else ""
        case = f"nodes: {nodes}{fitted}"
        errors |= {
            f"{case}, memory": (memory["by_nodes"][nodes]["median_error"], None),
            f"{case}, time": (time["by_nodes"][nodes]["median_error"], None),
            f"{case}, noise of the measurements": (noise["median"], None),
        }
    return [
        Ratio(
            case,
            "measured layouts",
            100 * error,
            at_most=None if most is None else 100 * most,
            unit="%",
        )
        for case, (error, most) in errors.items()
    ]


def is_timed(row: MeasuredLayout) -> bool:
    """Return whether a row passes :data:`FILTER`."""
    return row.ran and (row.job.layout.pipeline == 1 or row.newer_pipeline_code)


def group_rows(rows: Iterable[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    """Group rows by a key, in ascending order."""
    return {name: list(group) for name, group in groupby(sorted(rows, key=key), key)}


def pair_rows(rows: Iterable[MeasuredLayout]) -> list[tuple[MeasuredLayout, MeasuredLayout]]:
    """Pair rows of equal layouts; the ZeRO stages may differ."""
    alike: dict[object, list[MeasuredLayout]] = defaultdict(list)
    for row in rows:
        alike[row.job.with_layout(zero=0)].append(row)
    return [(group[0], other) for group in alike.values() for other in group[1:]]


def measure_noise(rows: Iterable[MeasuredLayout]) -> dict[str, dict[str, float]]:
    """Return the gap of paired measurements, relative to the faster one."""
    gaps: dict[int, list[float]] = defaultdict(list)
    for pair in pair_rows(rows):
        fast, slow = sorted(row.seconds for row in pair)
        gaps[pair[0].nodes].append(slow / fast - 1)
    return {
        str(nodes): {"median": median(values), "pairs": len(values)}
        for nodes, values in sorted(gaps.items())
    }


def compare_verdicts(
    rows: Iterable[MeasuredLayout], hardware: Hardware, software: SoftwareModel
) -> dict[str, float]:
    """Compare planned peaks below the usable memory with the runs that ended."""
    verdicts = [
        (plan_memory(row.job, hardware, software.memory).is_within_limit, row.ran)
        for row in rows
    ]
    return {
        "right": sum(fits == ran for fits, ran in verdicts) / max(len(verdicts), 1),
        "false_fit": sum(fits and not ran for fits, ran in verdicts),
        "false_oom": sum(ran and not fits for fits, ran in verdicts),
        "n": len(verdicts),
    }


def error_spread(errors: Sequence[float]) -> dict[str, float]:
    """Return the median and the ninth decile of absolute errors."""
    ordered = sorted(errors)
    ninth = ordered[min(int(0.9 * len(ordered)), len(ordered) - 1)]
    return {"median_error": median(ordered), "p90_error": ninth, "n": len(ordered)}


def compare_figures(
    held_out: Iterable[MeasuredLayout],
    rows: Iterable[MeasuredLayout],
    ratio: Predictor,
    **labels: str,
) -> dict[str, object]:
    """Compare predicted with measured figures, by their ratio: overall and by node count."""

    def spread(selected: Iterable[MeasuredLayout]) -> dict[str, float]:
        return error_spread([abs(ratio(row) - 1) for row in selected])

    groups = group_rows(rows, lambda row: row.nodes)
    by_nodes = {str(nodes): spread(group) for nodes, group in groups.items()}
    return {**spread(held_out), **labels, "by_nodes": by_nodes}


def compare_scaled_times(
    rows: Sequence[MeasuredLayout], seconds: Predictor
) -> dict[str, dict[str, float]]:
    """Compare step times scaled by a step on two nodes of the same width and degrees."""

    def alike(row: MeasuredLayout) -> tuple[int, ...]:
        return row.job.shape.dim, row.job.layout.tensor, row.job.layout.pipeline

    measured = group_rows([row for row in rows if row.nodes == 2], alike)
    errors: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        for other in measured.get(alike(row), []):
            factor = other.seconds / seconds(other)
            if other is not row:
                errors[row.nodes].append(abs(factor * seconds(row) / row.seconds - 1))
    return {str(nodes): error_spread(group) for nodes, group in sorted(errors.items())}


def rankable_groups(rows: Iterable[MeasuredLayout]) -> list[list[MeasuredLayout]]:
    """Group rows by model and node count; drop groups too small to rank."""
    groups = group_rows(rows, lambda row: (row.model, row.nodes))
    return [group for group in groups.values() if len(group) >= SMALLEST_CELL]


def cost(row: MeasuredLayout) -> float:
    """Return measured seconds per token, since the batches of the runs differ."""
    return row.seconds / row.job.tokens_per_step


def correlate_order(rows: Sequence[MeasuredLayout], seconds: Predictor) -> dict[str, object]:
    """Correlate predicted with measured order, and the orders of paired measurements."""
    predicted = [
        [(seconds(row) / row.job.tokens_per_step, cost(row)) for row in group]
        for group in rankable_groups(rows)
    ]
    repeated: dict[object, list[tuple[float, float]]] = defaultdict(list)
    for row, other in pair_rows(rows):
        repeated[row.model, row.nodes].append((cost(row), cost(other)))
    paired = [group for group in repeated.values() if len(group) >= SMALLEST_CELL]
    return {
        "spearman_median": median(spearmanr(group).statistic for group in predicted),
        "cells": len(predicted),
        "paired_spearman_median": median(spearmanr(group).statistic for group in paired),
        "paired_cells": len(paired),
    }


def compute_regret(rows: Iterable[MeasuredLayout], seconds: Predictor) -> dict[str, object]:
    """Return how much slower the planner's first choice was than the fastest layout."""

    def predicted_cost(row: MeasuredLayout) -> float:
        return seconds(row) / row.job.tokens_per_step

    losses = [
        cost(min(group, key=predicted_cost)) / min(map(cost, group)) - 1
        for group in rankable_groups(rows)
    ]
    return {
        "median": median(losses) if losses else None,
        "worst": max(losses, default=None),
        "cells": len(losses),
    }


if __name__ == "__main__":
    run_script(lambda words: main(), max_words=0)
