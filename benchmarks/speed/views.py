"""What the speed page shows and no result keeps: ratios, medians and rows made of what is kept.

A script's view is laid over its result; `benchmarks/data/speed_claims.yaml` names both alike.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.planning.measured import read_rows
from benchmarks.planning.planner_accuracy import FILTER, accuracy
from benchmarks.speed import wanted
from benchmarks.speed.figures import number
from benchmarks.speed.results import Result, merged
from command.arguments import ROOT

View = dict[str, Any]
# Of the sides that a step is measured by, those of which more than the peer's pace is asked.
ASKED_OF_STEPS = {"ours, compiled / transformers": wanted.LEAST_COMPILED_TO_EAGER}
PASSES = ("signatures", "tokens")


def _train_step(result: Result) -> View:
    rates = result["tokens_per_second_median"]
    return {
        "pairs": [
            {**pair, "asked": ASKED_OF_STEPS.get(pair["name"], wanted.THE_PEER)}
            | dict(
                zip(("ours", "theirs"), map(rates.get, pair["name"].split(" / ")), strict=True)
            )
            for pair in _both_ratios(result)
        ]
    }


def _both_ratios(result: Result) -> Iterator[View]:
    for name, ratio in result["ratio_median"].items():
        yield {"name": name, "median": ratio, "fastest": result["ratio_fastest"][name]}


def _loss(result: Result) -> View:
    """Take the widths together: each is a part of the file."""
    widths = list(result.values())
    shape = widths[0]["shape"] | {"dim": [one["shape"]["dim"] for one in widths]}
    return {"widths": widths, "circumstances": {**merged(result, widths[0]), "shape": shape}}


def _whole_run(result: Result) -> View:
    firsts = result["first_step_seconds"]
    starts = enumerate(zip(firsts, result["imports_seconds"], strict=True), 1)
    return {
        "median_first_step_seconds": statistics.median(firsts),
        "compiled_first_step": {
            kind: statistics.median(seconds)
            for kind, seconds in result["compiled_first_step_seconds"].items()
        },
        "starts": [
            {"place": n, "seconds": all_, "imports": part} for n, (all_, part) in starts
        ],
    }


def _data_prep(result: Result) -> View:
    families = {
        name: {"name": name, **one}
        for name, one in result.items()
        if isinstance(one, dict) and "pieces" in one
    }
    near, memory = result["near_duplicates"], result["memory"]
    return {
        "tokenisers": list(families.values()),
        "tokenisers_by_the_clock": "; ".join(map(_by_the_clock, families.values())),
        "tokenisers_speak": {
            **merged(families, result),
            "shape": {"workers": result["workers"], **_sizes(families)},
        },
        "near_duplicates_speak": {
            **merged({"": near}, result),
            "shape": {
                "workers": result["workers"],
                "megabytes": near["megabytes"],
                "rounds": len(near["rounds"]["ours"]),
                **near["settings"],
            },
        },
        "recalls": [near["recall_above_threshold"]],
        "passes": [
            {"name": kind, "megabytes": _of_text(size), **one}
            for kind in PASSES
            for size, one in memory[kind].items()
        ],
        "passes_speak": {
            **merged({"": memory}, result),
            "convention": "resident memory at the highest, of the largest process",
            "shape": {
                "megabytes": {
                    kind: [_of_text(size) for size in memory[kind]] for kind in PASSES
                }
            },
        },
    }


def _of_text(size: str) -> int:
    return int(size.removesuffix("_megabytes"))


def _sizes(families: Mapping[str, Result]) -> View:
    """Tell each family's text and rounds: the slower one has less of both."""
    return {
        "megabytes": {name: round(one["megabytes"]) for name, one in families.items()},
        "rounds": {name: len(one["rounds"]["ours"]) for name, one in families.items()},
    }


def _by_the_clock(family: Result) -> str:
    ratio = family["ratio_by_seconds"]
    names = {
        "datatrove": "datatrove",
        "tokenizers": "tokenizers alone",
        "bare": "the bare engine (a limit)",
    }
    told = (f"{names[way]} {number(ratio[way])}" for way in names if way in ratio)
    return f"{family['name']}: {', '.join(told)}"


def _document_steps(result: Result) -> View:
    measured = result["measured"].items()
    return {
        "with_an_engine": [
            {"name": name, **texts}
            for name, texts in measured
            if all("ratio" in one for one in texts.values())
        ]
    }


def _data_open(result: Result) -> View:
    rows = dict(result["rows"])
    theirs = rows.pop("megatron-core")
    return {
        "ours": [
            {"name": name, "ratio_memory": theirs["added_bytes"] / one["added_bytes"], **one}
            for name, one in rows.items()
        ],
        "times_their_tokens": rows["ours"]["tokens"] / theirs["tokens"],
        "machine": result["machine"] | {"load": round(result["load"], 1)},
    }


def _planner_accuracy(result: Result) -> View:
    """Predict, today, what was measured; nothing is timed."""
    measured = read_rows(ROOT / result["source"])
    found: Any = accuracy(measured)
    return {
        **found,
        "fits": {**found["fits"], "wrong": 1 - found["fits"]["right"]},
        "by_nodes": [
            {
                "label": f"{nodes} node{'s' * (nodes != '1')}"
                + ", seen by the constants" * (int(nodes) in found["fitted_nodes"]),
                "memory": found["memory"]["by_nodes"][nodes],
                "time": found["time"]["by_nodes"][nodes],
                "noise": noise,
            }
            for nodes, noise in found["noise_of_timed"].items()
        ],
        "peer": "layouts that the Ultra-Scale Playbook's authors measured and released",
        "convention": "medians of absolute errors, as a part of what was measured; noise is "
        "the median gap of layouts measured twice or with ZeRO 0 and 1; of the times, "
        f"{FILTER}",
        "shape": {
            "layouts": len(measured),
            "not seen by constants": found["fits"]["n"],
            "devices": "H100-80GB, 8 a node",
        },
        "machine": "any: arithmetic on rows that are kept",
        "date": "this commit",
        "versions": "this commit's",
    }


VIEWS: Mapping[str, Callable[[Result], View]] = {
    "data_open": _data_open,
    "data_prep": _data_prep,
    "document_steps": _document_steps,
    "guards": lambda result: {"ratio_alone": 1 + result["alone_fraction"]},
    "loss": _loss,
    "parallel_overhead": lambda result: {
        "layouts": [one for one in _both_ratios(result) if one["name"] != "independent"]
    },
    "planner_accuracy": _planner_accuracy,
    "profiler": lambda result: {"idle_ratio_alone": 1 + result["idle_fraction_alone"]},
    "train_step": _train_step,
    "whole_run": _whole_run,
    "worlds": lambda result: {
        "sizes": [{"ranks": int(n), "seconds": one} for n, one in result["seconds"].items()]
    },
}


def view(script: str, result: Result) -> Result:
    """Lay over a script's result what follows from it."""
    return {**result, **VIEWS[script](result)} if script in VIEWS else result
