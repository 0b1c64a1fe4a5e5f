"""How far are the planner's predictions from measured layouts?

The noise floor comes first: layouts measured twice, and layouts measured with ZeRO-0 and
ZeRO-1, whose gap is the cluster's. Constants were fitted on two node counts; the figures are of
the others, or of all where a file has no others. Nothing is fitted here.

    python -m benchmarks.planning.planner_accuracy [--measured FILE.csv]
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import StatisticsError, correlation, median
from typing import Any

import yaml

from benchmarks.entry import enter
from benchmarks.kept import ROOT
from benchmarks.planning.measured import MeasuredLayout, read_rows
from benchmarks.ratios import Ratio
from components.config.schema.cluster import Hardware
from components.config.validation import read_section
from components.errors import RecipeError
from components.planner.memory import plan_memory, rank_memory
from components.planner.software import SoftwareModel, read_software
from components.planner.time import plan_time

DATA = ROOT / "benchmarks" / "data"
TABLE = DATA / "h100_layouts.csv"
# Medians on layouts that no constant has seen, as parts of what was measured.
MOST_WRONG_FITS, MOST_MEMORY_ERROR, MOST_TIME_ERROR, MOST_REGRET = 0.04, 0.08, 0.12, 0.05
SMALLEST_CELL = 5
FILTER = "runs that ended; without pipelines of the older code, which the campaign replaced"
Predictor = Callable[[MeasuredLayout], float]


def main(words: Sequence[str]) -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(prog="planner_accuracy")
    parser.add_argument("--measured", type=Path, default=TABLE)
    file = parser.parse_args(words).measured
    rows = read_rows(file)
    if not rows:
        problem = "no row ended in Success or OOM"
        raise RecipeError(str(file), problem, "measure one layout at least")
    print(json.dumps(accuracy(rows), indent=1))


def read_campaign() -> tuple[Hardware, SoftwareModel, list[int]]:
    """Read the measured layouts' machine and software, and the nodes that fitted constants."""
    campaign = yaml.safe_load((DATA / "h100_layouts.yaml").read_text("utf-8"))
    tree = yaml.safe_load((ROOT / campaign["profile"]).read_text("utf-8"))
    hardware = read_section(Hardware, tree["hardware"], campaign["profile"])
    return hardware, read_software(ROOT / campaign["software"]), campaign["fitted_nodes"]


def accuracy(rows: Sequence[MeasuredLayout]) -> dict[str, object]:
    """Compare all rows with the predictions for the campaign's machine and software."""
    hardware, software, fitted = read_campaign()
    judged = [row for row in rows if row.nodes not in fitted] or list(rows)
    timed = [row for row in rows if is_timed(row)]
    unseen = [row for row in judged if is_timed(row)]

    def seconds(row: MeasuredLayout) -> float:
        return plan_time(row.job, hardware, software.speed).total

    return {
        "fitted_nodes": fitted,
        "noise": noise([row for row in rows if row.ran]),
        "noise_of_timed": noise(timed),
        "fits": fits(judged, hardware, software),
        "memory": memory(judged, rows, software),
        "time": times(unseen, timed, seconds),
        "rank": rank(unseen, seconds),
        "regret": regret(unseen, seconds),
    }


def predicted_ratios() -> list[Ratio]:
    """Compare the measured layouts of this repository with what the planner predicts today."""
    found: Any = accuracy(read_rows(TABLE))
    memory, time = found["memory"], found["time"]
    errors: dict[str, tuple[float, float | None]] = {
        "new layouts, memory": (memory["median_error"], MOST_MEMORY_ERROR),
        "new layouts, time": (time["median_error"], MOST_TIME_ERROR),
        "new layouts, wrong about what fits": (1 - found["fits"]["right"], MOST_WRONG_FITS),
        "new layouts, first choice slower than the best": (
            found["regret"]["median"],
            MOST_REGRET,
        ),
    }
    for nodes, noise in found["noise_of_timed"].items():
        fitted = ", fitted" if int(nodes) in found["fitted_nodes"] else ""
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
    """Hold :data:`FILTER`."""
    return row.ran and (row.job.layout.pipeline == 1 or row.newer_pipeline_code)


def pairs(rows: Iterable[MeasuredLayout]) -> list[tuple[MeasuredLayout, MeasuredLayout]]:
    """Pair rows that are the same but for the ZeRO stage, or in all."""
    alike: dict[object, list[MeasuredLayout]] = defaultdict(list)
    for row in rows:
        alike[row.job.with_layout(zero=0)].append(row)
    return [(group[0], other) for group in alike.values() for other in group[1:]]


def noise(rows: Iterable[MeasuredLayout]) -> dict[str, dict[str, float]]:
    """Gap of paired measurements, as a fraction of the faster."""
    gaps: dict[int, list[float]] = defaultdict(list)
    for one, two in pairs(rows):
        slow, fast = max(one.seconds, two.seconds), min(one.seconds, two.seconds)
        gaps[one.nodes].append(slow / fast - 1)
    return {
        str(nodes): {"median": median(values), "pairs": len(values)}
        for nodes, values in sorted(gaps.items())
    }


def fits(
    rows: Iterable[MeasuredLayout], hardware: Hardware, software: SoftwareModel
) -> dict[str, float]:
    """Compare verdicts with what ran; ``tight`` counts as fitting."""
    answers = [
        (plan_memory(row.job, hardware, software.memory).verdict != "does_not_fit", row.ran)
        for row in rows
    ]
    return {
        "right": sum(said == ran for said, ran in answers) / max(len(answers), 1),
        "false_fit": sum(said and not ran for said, ran in answers),
        "false_oom": sum(ran and not said for said, ran in answers),
        "n": len(answers),
    }


def spread(errors: Sequence[float]) -> dict[str, float | None]:
    """Return the median and the ninth decile of absolute errors."""
    if not errors:
        return {"median_error": None, "p90_error": None, "n": 0}
    ordered = sorted(errors)
    ninth = ordered[min(int(0.9 * len(ordered)), len(ordered) - 1)]
    return {"median_error": median(ordered), "p90_error": ninth, "n": len(ordered)}


def memory(
    judged: Iterable[MeasuredLayout], rows: Iterable[MeasuredLayout], software: SoftwareModel
) -> dict[str, object]:
    """Compare peaks with the reserved memory of the rank that logged it, the first."""

    def errors(chosen: Iterable[MeasuredLayout]) -> list[float]:
        return [
            abs(rank_memory(row.job, 0, software.memory).peak / row.reserved_bytes - 1)
            for row in chosen
            if row.ran
        ]

    by_nodes = {str(n): spread(errors(group)) for n, group in by_node_count(rows)}
    return {**spread(errors(judged)), "measure": "reserved", "by_nodes": by_nodes}


def by_node_count(rows: Iterable[MeasuredLayout]) -> list[tuple[int, list[MeasuredLayout]]]:
    """Group rows, the fewest nodes first."""
    groups: dict[int, list[MeasuredLayout]] = defaultdict(list)
    for row in rows:
        groups[row.nodes].append(row)
    return sorted(groups.items())


def times(
    judged: Iterable[MeasuredLayout], rows: Iterable[MeasuredLayout], seconds: Predictor
) -> dict[str, object]:
    """Compare step times, in all and by node count."""

    def errors(chosen: Iterable[MeasuredLayout]) -> list[float]:
        return [abs(seconds(row) / row.seconds - 1) for row in chosen]

    by_nodes = {str(n): spread(errors(group)) for n, group in by_node_count(rows)}
    return {**spread(errors(judged)), "filter": FILTER, "by_nodes": by_nodes}


def cells(rows: Iterable[MeasuredLayout]) -> list[list[MeasuredLayout]]:
    """Group the rows of one model on one number of nodes, where there are enough to rank."""
    groups: dict[object, list[MeasuredLayout]] = defaultdict(list)
    for row in rows:
        groups[row.model, row.nodes].append(row)
    return [group for group in groups.values() if len(group) >= SMALLEST_CELL]


def cost(row: MeasuredLayout) -> float:
    """Return measured seconds a token."""
    return row.seconds / row.job.tokens_per_step


def spearman(one: Sequence[float], two: Sequence[float]) -> float:
    """Correlate ranks (Spearman 1904); ties share their mean rank."""
    try:
        return correlation(ranks(one), ranks(two))
    except StatisticsError:  # all of one side are equal: there is no order
        return 0.0


def ranks(values: Sequence[float]) -> list[float]:
    """Number values from the smallest, 0; ties share their mean."""
    return [
        sum(other < value for other in values) + (values.count(value) - 1) / 2
        for value in values
    ]


def rank(rows: Sequence[MeasuredLayout], seconds: Predictor) -> dict[str, object]:
    """Correlate predicted and measured order, beside that of paired measurements.

    Order is by seconds a token: not every run had the same batch.
    """

    def predicted_cost(row: MeasuredLayout) -> float:
        return seconds(row) / row.job.tokens_per_step

    predicted = [
        spearman([predicted_cost(row) for row in cell], [cost(row) for row in cell])
        for cell in cells(rows)
    ]
    paired: dict[object, list[tuple[MeasuredLayout, MeasuredLayout]]] = defaultdict(list)
    for one, two in pairs(rows):
        paired[one.model, one.nodes].append((one, two))
    repeated = [
        spearman([cost(one) for one, _ in group], [cost(two) for _, two in group])
        for group in paired.values()
        if len(group) >= SMALLEST_CELL
    ]
    return {
        "spearman_median": median(predicted) if predicted else None,
        "cells": len(predicted),
        "paired_spearman_median": median(repeated) if repeated else None,
        "paired_cells": len(repeated),
    }


def regret(rows: Iterable[MeasuredLayout], seconds: Predictor) -> dict[str, object]:
    """Ask how much slower the layout that the planner prefers was than the fastest."""

    def predicted_cost(row: MeasuredLayout) -> float:
        return seconds(row) / row.job.tokens_per_step

    losses = [
        cost(min(cell, key=predicted_cost)) / min(map(cost, cell)) - 1 for cell in cells(rows)
    ]
    return {
        "median": median(losses) if losses else None,
        "worst": max(losses, default=None),
        "cells": len(losses),
    }


if __name__ == "__main__":
    enter(main)
