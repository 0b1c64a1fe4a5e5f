"""The claims about data and about the planner."""

from typing import Any

from benchmarks import wanted
from benchmarks.measured import read_rows
from benchmarks.planner_accuracy import DATA, accuracy
from benchmarks.speed_claims import (
    Axis,
    Claim,
    Figure,
    Result,
    Row,
    at_least,
    at_most,
    number,
)

MEGA = 1e6
PERCENT = 100
LAYOUTS = "h100_layouts.csv"
PEER = at_least(wanted.THE_PEER)
LIMIT = "bare"  # a tokenizer whose ids are thrown away: nothing is faster with it
NAMES = {
    "datatrove": "datatrove",
    "tokenizers": "tokenizers alone",
    LIMIT: "the bare engine, a limit",
}


def tokenising(result: Result) -> Claim:
    """Compare tokenisers of text, family by family."""
    rows = []
    for family, one in result.items():
        if not (isinstance(one, dict) and "pieces" in one):
            continue
        ratio, by_clock = one["ratio_by_processor_seconds"], one["ratio_by_seconds"]
        figures = {
            name: Figure(value=ratio[way], wanted=None if way == LIMIT else PEER)
            for way, name in NAMES.items()
            if way in ratio
        }
        told = " and ".join(number(by_clock[way]) for way in ("datatrove", LIMIT))
        cells = (f"{one['megabytes_a_processor_second']['ours']:.1f}", told)
        label = f"{family}, {one['pieces']:,} pieces"
        rows.append(Row(label=label, cells=cells, figures=figures))
    return Claim(
        key="tokenising",
        title="Tokenising",
        says="JSONL to token files by two workers, their start included, beside datatrove's "
        "`DocumentTokenizer` with the same tokenizer, beside `tokenizers` alone, and beside "
        "the engine that encodes and throws the ids away. Which text, and what was tried: "
        "[corpora_duplicates.md](corpora_duplicates.md).",
        beside="datatrove, tokenizers, the engine",
        command="benchmarks.data_prep",
        heads=("ours, MB a processor second", "by the clock, datatrove and limit"),
        rows=rows,
        axis=Axis(
            title="our rate by theirs, seconds of processor; more is better",
            peer="the other",
            log=True,
        ),
        source="benchmarks/results/data_prep.json",
        result=result,
    )


def near_duplicates(result: Result) -> Claim:
    """Compare removers of near duplicates by rate and by what they find."""
    one = result["near_duplicates"]
    cases = {
        "rate, by seconds of processor": ("processor_seconds", "megabytes_a_processor_second"),
        "rate, by the clock": ("seconds", "megabytes_a_second"),
    }
    ways = ("ours", "datatrove")
    rows = []
    for label, (clock, rate) in cases.items():
        cells = tuple(f"{one[rate][way]:.2f} MB/s" for way in ways)
        figure = Figure(value=one[f"ratio_by_{clock}"]["datatrove"], wanted=PEER)
        rows.append(Row(label=label, cells=cells, figures={"found": figure}))
    recall = one["recall_above_threshold"]
    figure = Figure(value=recall["ours"] / recall["datatrove"], wanted=PEER)
    cells = tuple(f"{PERCENT * recall[way]:.1f} %" for way in ways)
    rows.append(
        Row(label="planted copies that are found", cells=cells, figures={"found": figure})
    )
    return Claim(
        key="near_duplicates",
        title="Near duplicates",
        says="MinHash over the same files with the same bands and rows, beside datatrove's "
        f"pipeline: {one['documents']:,} documents, of which "
        f"{one['planted_above_threshold']:,} are planted copies of a true similarity of "
        f"{one['verified']['threshold']} or more.",
        beside="datatrove",
        command="benchmarks.data_prep",
        heads=("ours", "datatrove"),
        rows=rows,
        axis=Axis(title="ours by datatrove's; more is better", peer="datatrove", log=True),
        source="benchmarks/results/data_prep.json",
        result=result,
    )


def opening(result: Result) -> Claim:
    """Compare the time and memory until a first batch."""
    theirs = "megatron-core"
    rows = []
    for name, one in result["rows"].items():
        if name == theirs:
            continue
        added = result["rows"][theirs]["added_bytes"] / one["added_bytes"]
        figures = {
            "time": Figure(value=one["ratio_seconds"], wanted=PEER),
            "memory": Figure(value=added, wanted=PEER),
        }
        cells = (f"{one['tokens']:,}", f"{one['seconds']:.2f}")
        rows.append(Row(label=name, cells=cells, figures=figures))
    other = result["rows"][theirs]
    return Claim(
        key="opening",
        title="Until the first batch",
        says="Sixteen samples of a corpus that was never opened, beside megatron-core's "
        f"`GPTDataset` without a cache, which took {other['seconds']:.1f} s and "
        f"{other['added_bytes'] / MEGA:,.0f} MB for {other['tokens']:,} tokens and is faster "
        "the second time.",
        beside="megatron-core",
        command="benchmarks.data_open",
        heads=("tokens", "s"),
        rows=rows,
        axis=Axis(title="theirs by ours; more is better", peer="megatron-core", log=True),
        source="benchmarks/results/data_open.json",
        result=result,
    )


def preparation_memory(result: Result) -> Claim:
    """Show what a whole preparation holds as its corpus grows."""
    kinds = {
        "the command": "command_bytes",
        "its own pages": "command_anonymous_bytes",
        "the largest worker": "worker_bytes",
        "the worker's own": "worker_anonymous_bytes",
    }
    rows = [
        Row(
            label=f"{one['megabytes']:,.0f} MB of text",
            figures={
                label: Figure(value=one[name] / MEGA, unit="MB")
                for label, name in kinds.items()
            },
        )
        for one in result["corpora"]
    ]
    return Claim(
        key="preparation_memory",
        title="The memory of a preparation",
        says="The highest resident memory while text is normalised, freed of exact and near "
        "duplicates and tokenised. There is no peer: the question is whether it grows with the "
        "corpus. What is not a process's own are pages of mapped files, which the system takes "
        "back when it needs them.",
        beside="smaller corpora",
        command="benchmarks.corpus_memory",
        rows=rows,
        axis=Axis(title="MB at the peak; less is better", peer=None),
        source="benchmarks/results/corpus_memory.json",
        result=result,
    )


def document_steps(result: Result) -> Claim:
    """Compare each step of one document with the engine under it."""
    rows = []
    for name, by_text in result["measured"].items():
        if not all("ratio" in one for one in by_text.values()):
            continue
        figures = {text: Figure(value=one["ratio"]) for text, one in by_text.items()}
        cells = (" and ".join(f"{one['step']:.1f}" for one in by_text.values()),)
        rows.append(Row(label=name, cells=cells, figures=figures))
    return Claim(
        key="document_steps",
        title="Steps of one document",
        says="Each filter beside the engine that it calls (datatrove's filters and formatters, "
        "fastText); the last two beside datatrove's way to cut sentences and n-grams as "
        "strings. The engine is a limit where we only call it. On texts of English and of 24 "
        "languages; a busy host: differences below a fifth say nothing.",
        beside="datatrove, fastText",
        command="benchmarks.document_steps",
        heads=("MB a processor second, both texts",),
        rows=rows,
        axis=Axis(title="our rate by the engine's; more is better", peer="engine", log=True),
        source="benchmarks/results/document_steps.json",
        result=result,
    )


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
        axis=Axis(title="median error, %; less is better", peer=None, log=True),
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
