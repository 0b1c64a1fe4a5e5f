"""The claims about ranks: what an axis costs, what it saves, and how a large world starts."""

from benchmarks import wanted
from benchmarks.speed_claims import Axis, Claim, Figure, Result, Row, at_least, at_most


def parallel_overhead(result: Result) -> Claim:
    """Compare layouts of two ranks with two processes that know of no other."""
    ratios = result["ratio_median"]
    fastest = result["ratio_fastest"]
    rows = [
        Row(
            label=layout,
            figures={
                "medians": Figure(value=ratio),
                "fastest steps": Figure(value=fastest[layout]),
            },
        )
        for layout, ratio in ratios.items()
        if layout != "independent"
    ]
    return Claim(
        key="parallel_overhead",
        title="What an axis costs",
        says="A step of two ranks that share a batch beside two processes that have half of it "
        "each and never speak: communication over gloo, waiting, and what is computed twice. A "
        "pipeline of two stages waits for a microbatch's time on any machine. Nobody asked for "
        "a figure; gloo on two cores says little of NCCL.",
        beside="processes that share nothing",
        command="benchmarks.parallel_overhead",
        rows=rows,
        axis=Axis(
            title="seconds a step by those of the two processes; less is better",
            peer="two processes alone",
        ),
        source="benchmarks/results/parallel_overhead.json",
        result=result,
    )


def expert_optimizer(result: Result) -> Claim:
    """Compare an optimizer that divides what expert ranks repeat with one that does not."""
    here = {
        "state": Figure(
            value=result["ratio_state_bytes"], wanted=at_least(_by_formula(result))
        ),
        "time": Figure(value=result["ratio_seconds_median"], wanted=at_least(wanted.THE_PEER)),
    }
    rows = [Row(label="four ranks here", cells=("counted and timed here",), figures=here)]
    for name, one in result["published"].items():
        figures = {
            "state": Figure(value=one["state"]),
            "time": Figure(value=one["optimizer_speedup"]),
        }
        cells = ("state by the formula, time as published",)
        rows.append(Row(label=f"{name}, Optimus", cells=cells, figures=figures))
    return Claim(
        key="expert_optimizer",
        title="The expert-aware optimizer",
        says="Four ranks of which each repeats the dense weights' state and update, beside "
        "four that divide them: state in live tensors, and the time after the last backward "
        "pass. Below are [Optimus](https://arxiv.org/abs/2604.00785)'s times on Aurora (table "
        "3); what another run found here: [experts.md](experts.md).",
        beside="a plain optimizer, Optimus",
        command="benchmarks.expert_optimizer",
        heads=("whence",),
        rows=rows,
        axis=Axis(title="plain by expert-aware; more is better", peer="plain"),
        source="benchmarks/results/expert_optimizer.json",
        result=result,
    )


def _by_formula(result: Result) -> float:
    sizes = result["state_bytes_by_formula"]
    return float(sizes["plain"] / sizes["aware"])


def worlds(result: Result) -> Claim:
    """Set the time until a rank has its groups against the limit."""
    rows = [
        Row(
            label=f"{int(ranks):,} ranks",
            figures={
                "found": Figure(
                    value=seconds, unit="s", wanted=at_most(wanted.MOST_WORLD_SECONDS)
                )
            },
        )
        for ranks, seconds in result["seconds"].items()
    ]
    return Claim(
        key="worlds",
        title="Large worlds",
        says="How long one rank takes to build the mesh and the groups of a large world, whose "
        "other ranks are only counted (torch's fake process group): no network is in it.",
        beside="our limit",
        command="benchmarks.worlds",
        rows=rows,
        axis=Axis(title="seconds; less is better", peer=None, log=True),
        source="benchmarks/results/worlds.json",
        result=result,
    )
