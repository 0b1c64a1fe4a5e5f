"""The claim about the planner: what it says today of layouts that others have measured."""

from typing import Any

from benchmarks import wanted
from benchmarks.measured import read_rows
from benchmarks.planner_accuracy import DATA, accuracy
from benchmarks.speed_claims import Axis, Claim, Figure, Result, Row, at_most

PERCENT = 100
LAYOUTS = "h100_layouts.csv"


def planner() -> Claim:
    """Set today's predictions beside measured layouts; nothing is timed."""
    measured = read_rows(DATA / LAYOUTS)
    found: Any = accuracy(measured)
    result: Result = {
        "peer": "layouts that the Ultra-Scale Playbook's authors measured and released",
        "convention": "medians of absolute errors, as a part of what was measured; noise is "
        "the median gap of layouts measured twice or with ZeRO 0 and 1",
        "shape": {
            "layouts": len(measured),
            "not seen by constants": found["fits"]["n"],
            "devices": "H100-80GB, 8 a node",
        },
        "machine": "any: arithmetic on rows that are kept",
        "date": "this commit",
        "versions": "this commit's",
    }
    rows = []
    for nodes, noise in found["noise_of_timed"].items():
        fitted = "" if int(nodes) not in found["fitted_nodes"] else ", seen by the constants"
        errors = {
            "memory": found["memory"]["by_nodes"][nodes]["median_error"],
            "time": found["time"]["by_nodes"][nodes]["median_error"],
            "noise of the measurements": noise["median"],
        }
        figures = {
            name: Figure(value=PERCENT * value, unit="%") for name, value in errors.items()
        }
        label = f"{nodes} node{'s' * (nodes != '1')}{fitted}"
        rows.append(Row(label=label, figures=figures))
    rows.append(Row(label="all that no constant has seen", figures=_judged(found)))
    return Claim(
        key="planner",
        title="The planner's error",
        says="What a plan says of layouts that others measured: memory of the first rank and "
        "step time, by the number of nodes; whether a layout fits, and how much slower than "
        "the fastest the one is that the planner prefers. Where it is wrong: "
        "[plan.md](plan.md).",
        beside="measured layouts",
        command="benchmarks.planner_accuracy",
        rows=rows,
        axis=Axis(title="median error, %; less is better", peer=None),
        source=f"benchmarks/data/{LAYOUTS}",
        result=result,
    )


def _judged(found: Any) -> dict[str, Figure]:
    errors = {
        "memory": (found["memory"]["median_error"], wanted.MOST_MEMORY_ERROR),
        "time": (found["time"]["median_error"], wanted.MOST_TIME_ERROR),
        "fits said wrongly": (1 - found["fits"]["right"], 1 - wanted.LEAST_RIGHT_FITS),
        "first choice slower than the best": (found["regret"]["median"], wanted.MOST_REGRET),
    }
    return {
        name: Figure(value=PERCENT * value, unit="%", wanted=at_most(PERCENT * most))
        for name, (value, most) in errors.items()
    }
