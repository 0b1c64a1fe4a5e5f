"""The claims about data: each from the result that its benchmark keeps."""

from benchmarks import wanted
from benchmarks.speed_claims import (
    Axis,
    Claim,
    Figure,
    Result,
    Row,
    at_least,
    merged,
    number,
)

MEGA = 1e6
PERCENT = 100
PEER = at_least(wanted.THE_PEER)
LIMIT = "bare"  # a tokenizer whose ids are thrown away: nothing is faster with it
NAMES = {
    "datatrove": "datatrove",
    "tokenizers": "tokenizers alone",
    LIMIT: "the bare engine (a limit)",
}


def tokenising(result: Result) -> Claim:
    """Compare tokenisers of text, family by family."""
    families = {
        name: one for name, one in result.items() if isinstance(one, dict) and "pieces" in one
    }
    rows, clock = [], []
    for family, one in families.items():
        ratio, by_clock = one["ratio_by_processor_seconds"], one["ratio_by_seconds"]
        figures = {
            name: Figure(value=ratio[way], wanted=None if way == LIMIT else PEER)
            for way, name in NAMES.items()
            if way in ratio
        }
        told = ", ".join(
            f"{name} {number(by_clock[way])}" for way, name in NAMES.items() if way in ratio
        )
        clock.append(f"{family}: {told}")
        cells = (f"{one['megabytes_a_processor_second']['ours']:.1f}",)
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
        heads=("ours, MB a processor second",),
        rows=rows,
        axis=Axis(
            title="our rate by theirs, seconds of processor; more is better",
            peer="the other",
            log=True,
        ),
        source="benchmarks/results/data_prep.json",
        result=merged(families, result),
        after=f"By the clock: {'; '.join(clock)}.",
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
        result=merged({"near_duplicates": one}, result),
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


def pass_memory(result: Result) -> Claim:
    """Show what the largest process of one pass holds as its text grows."""
    passes, rows = ("signatures", "tokens"), []
    for kind in passes:
        for size, one in result["memory"][kind].items():
            label = f"{kind}, {size.partition('_')[0]} MB, {one['documents']:,} documents"
            found = {"found": Figure(value=one["peak_bytes"] / MEGA, unit="MB")}
            rows.append(Row(label=label, figures=found))
    return Claim(
        key="pass_memory",
        title="The memory of a pass",
        says="The highest resident memory of any one process that computes the signatures for "
        "near duplicates, or that tokenises, over more and more text. There is no peer: the "
        "question is whether it grows.",
        beside="less text",
        command="benchmarks.data_prep",
        rows=rows,
        axis=Axis(title="MB at the peak; less is better", peer=None),
        source="benchmarks/results/data_prep.json",
        result={
            **merged({"memory": result["memory"]}, result),
            "convention": "resident memory at the highest, of the largest process",
        },
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
        "languages; by step: [corpora_filters.md](corpora_filters.md).",
        beside="datatrove, fastText",
        command="benchmarks.document_steps",
        heads=("MB a processor second, both texts",),
        rows=rows,
        axis=Axis(title="our rate by the engine's; more is better", peer="engine", log=True),
        source="benchmarks/results/document_steps.json",
        result=result,
    )
