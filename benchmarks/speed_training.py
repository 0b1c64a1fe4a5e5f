"""The claims about a step and its parts: each from the result that its benchmark keeps."""

from benchmarks import wanted
from benchmarks.speed_claims import (
    Axis,
    Claim,
    Figure,
    Result,
    Row,
    at_least,
    at_most,
    merged,
)

MEGA = 1e6
PEER = at_least(wanted.THE_PEER)
# Of the sides that a step is measured by, those of which more than the peer's pace is asked.
ASKED_OF_STEPS = {"ours, compiled / transformers": at_least(wanted.LEAST_COMPILED_TO_EAGER)}


def dense_step(result: Result) -> Claim:
    """Compare optimizer steps, by rates."""
    rates, fastest = result["tokens_per_second_median"], result["ratio_fastest"]
    rows = []
    for pair, ratio in result["ratio_median"].items():
        ours, theirs = pair.split(" / ")
        figures = {
            "medians": Figure(value=ratio, wanted=ASKED_OF_STEPS.get(pair, PEER)),
            "fastest rounds": Figure(value=fastest[pair]),
        }
        cells = (f"{rates[ours]:,.0f}", f"{rates[theirs]:,.0f}")
        rows.append(Row(label=pair, cells=cells, figures=figures))
    return Claim(
        key="dense_step",
        title="The dense step",
        says="A whole optimizer step (forward, backward, clipping, AdamW) of our decoder "
        "beside `transformers`' Llama with the same weights and batches, each as it is and "
        "through torch's compiler: ours layer by layer, theirs whole.",
        beside="transformers",
        command="benchmarks.train_step",
        heads=("ours, tokens/s", "theirs"),
        rows=rows,
        axis=Axis(title="our tokens a second by theirs; more is better", peer="transformers"),
        source="benchmarks/results/train_step.json",
        result=result,
    )


def families(result: Result) -> Claim:
    """Compare each family's miniature with the class that loads its export."""
    rows = []
    for name, one in result["families"].items():
        peak, rate = one["peak_bytes"], one["tokens_per_second"]
        figures = {
            "speed": Figure(value=one["ratio_median"], wanted=PEER),
            "memory": Figure(value=peak["transformers"] / peak["ours"], wanted=PEER),
        }
        sizes = (peak["ours"], peak["transformers"])
        cells = (
            " and ".join(f"{rate[side]:,.0f}" for side in ("ours", "transformers")),
            " and ".join(f"{size / MEGA:,.0f}" for size in sizes),
        )
        rows.append(
            Row(label=f"{name}, {one['recipe']} in miniature", cells=cells, figures=figures)
        )
    return Claim(
        key="families",
        title="Every family",
        says="Loss and backward pass of one miniature of each family beside the class of "
        "`transformers` that loads our export of it, without a compiler; memory is what a pass "
        "adds in a new process.",
        beside="transformers",
        command="benchmarks.model",
        heads=("tokens/s, ours and theirs", "MB, ours and theirs"),
        rows=rows,
        axis=Axis(title="theirs by ours, time and memory; more is better", peer="transformers"),
        source="benchmarks/results/model.json",
        result=result,
    )


def experts(result: Result) -> Claim:
    """Compare one sparse block's ways, by how many tokens it gets."""
    rows = []
    for size in result["sizes"]:
        theirs = {
            way_of(name): Figure(value=ratio, wanted=None if name.startswith("ours") else PEER)
            for name, ratio in size["ratio_median"].items()
        }
        ours = size["wall_seconds_median"]["ours, grouped"]
        cells = (f"{ours * 1_000:,.0f}",)
        rows.append(Row(label=f"{size['tokens']:,} tokens", cells=cells, figures=theirs))
    memory = result["peak_bytes_added_by_one_pass"]
    sizes = ", ".join(f"{way_of(name)} {size / MEGA:,.0f} MB" for name, size in memory.items())
    return Claim(
        key="experts",
        title="Experts by tokens",
        says="One sparse block, forward and backward with its router: our grouped products "
        "beside our loop over experts and both of `transformers`' ways.",
        beside="transformers, our loop",
        command="benchmarks.moe",
        heads=("ours, grouped, ms",),
        rows=rows,
        axis=Axis(
            title="their time by ours, grouped; more is better", peer="ours, grouped", log=True
        ),
        source="benchmarks/results/moe.json",
        result=result,
        after=f"One pass of the most tokens adds to the peak: {sizes}.",
    )


def way_of(name: str) -> str:
    """Call a way of a block by its owner: commas are for lists."""
    owner, _, way = name.partition(", ")
    return f"our {way}" if owner == "ours" else f"{owner}' {way}"


def loss(result: Result) -> Claim:
    """Compare head and loss in blocks with logits of all tokens."""
    rows = []
    for one in result.values():
        ratio, median = one["ratio"], one["median"]
        figures = {
            "time": Figure(value=ratio["seconds"], wanted=at_most(wanted.MOST_LOSS_TIME)),
            "memory": Figure(
                value=ratio["peak_bytes"], wanted=at_most(wanted.MOST_LOSS_MEMORY)
            ),
        }
        pair = [median[way] for way in ("ours", "plain")]
        cells = (
            " and ".join(f"{way['seconds']:.1f}" for way in pair),
            " and ".join(f"{way['peak_bytes'] / MEGA:,.0f}" for way in pair),
        )
        rows.append(Row(label=f"dim {one['shape']['dim']:,}", cells=cells, figures=figures))
    first = next(iter(result.values()))
    widths = [one["shape"]["dim"] for one in result.values()]
    return Claim(
        key="loss",
        title="The loss",
        says="Head and loss in blocks of tokens, which never hold all logits, beside "
        "`F.cross_entropy` of `F.linear`, which holds them all: "
        f"{first['shape']['rows']:,} rows of vocabulary.",
        beside="torch, all logits at once",
        command="benchmarks.loss",
        heads=("s, ours and plain", "MB, ours and plain"),
        rows=rows,
        axis=Axis(title="ours by plain; less is better", peer="logits of all tokens", log=True),
        source="benchmarks/results/loss.json",
        result={**merged(result, first), "shape": first["shape"] | {"dim": widths}},
    )
