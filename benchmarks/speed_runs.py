"""The claims about runs: what stands around their steps, and what an axis of ranks costs."""

from collections.abc import Mapping

from benchmarks import wanted
from benchmarks.speed_claims import (
    Axis,
    Claim,
    Figure,
    Result,
    Row,
    at_least,
    at_most,
    paired,
)

MEGA = 1e6
PERCENT = 100


def whole_run(result: Result) -> Claim:
    """Set what a run does beside its steps against what is allowed."""
    starts = [
        Row(
            label=f"start {place} until its first step",
            figures={
                "found": Figure(
                    value=seconds, unit="s", wanted=at_most(wanted.MOST_FIRST_SECONDS)
                )
            },
            cells=(f"{imports:.1f} s",),
        )
        for place, (seconds, imports) in enumerate(
            zip(result["first_step_seconds"], result["imports_seconds"], strict=True), 1
        )
    ]
    parts = {
        "between the steps": ("outside_fraction", wanted.MOST_OUTSIDE),
        "reading batches": ("loading_fraction", wanted.MOST_LOADING),
    }
    shares = [
        Row(
            label=f"{label}, of the run's time",
            figures={
                "found": Figure(
                    value=PERCENT * result[name], unit="%", wanted=at_most(PERCENT * most)
                )
            },
            cells=("",),
        )
        for label, (name, most) in parts.items()
    ]
    return Claim(
        key="whole_run",
        title="The whole run",
        says="The command on prepared data, from its start until its first step, some times in "
        "turn; and a run's time outside of steps. There is no peer: the limits are ours.",
        beside="our limits",
        command="benchmarks.whole_run",
        heads=("an import alone",),
        rows=[*starts, *shares],
        axis=Axis(
            title="found, as a part of what is allowed; less is better",
            peer="allowed",
            log=True,
            of_wanted=True,
        ),
        source="benchmarks/results/whole_run.json",
        result=result,
    )


def checkpoints(result: Result) -> Claim:
    """Compare saves with a disk and with torch's writer."""
    rate = result["gigabytes_per_second"]
    cases = {
        "steps stand still, by the time of a synchronous save": (
            "stall_to_synchronous",
            at_most(wanted.MOST_STALL),
            f"{result['median_seconds']['asynchronous_stall']:.2f} s and "
            f"{result['median_seconds']['synchronous']:.2f} s",
        ),
        "throughput, by that of `dd conv=fsync`": (
            "throughput_to_dd",
            at_least(wanted.LEAST_THROUGHPUT),
            f"{rate['synchronous']:.2f} GB/s and {rate['dd']:.2f} GB/s",
        ),
        "throughput, by that of torch's safetensors writer": (
            "throughput_to_torch",
            at_least(wanted.THE_PEER),
            f"{rate['synchronous']:.2f} GB/s and {rate['torch']:.2f} GB/s",
        ),
    }
    return Claim(
        key="checkpoints",
        title="Checkpoints",
        says=f"{result['bytes'] / MEGA:,.0f} MB of one process: how long an asynchronous save "
        "holds the steps up, and whether a save with its hashes is written as fast as the disk "
        "takes bytes. torch's writer hashes nothing.",
        beside="the disk, torch's writer",
        command="benchmarks.checkpoints",
        heads=("medians",),
        rows=[
            Row(label=label, cells=(told,), figures={"found": paired(result[name], asked)})
            for label, (name, asked, told) in cases.items()
        ],
        axis=Axis(title="ratio to the peer that the row names", peer="the peer", log=True),
        source="benchmarks/results/checkpoints.json",
        result=result,
    )


def parallel_overhead(result: Result) -> Claim:
    """Compare layouts of two ranks with two processes that know of no other."""
    ratios: Mapping[str, float] = result["ratio_median"]
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


def guards(result: Result) -> Claim:
    """Compare steps that are guarded with steps that are not."""
    interval = at_most(wanted.MOST_GUARDED, end="high")
    alone = Figure(value=1 + result["alone_fraction"], wanted=at_most(wanted.MOST_GUARDED))
    seconds = f"{result['alone_seconds'] * MEGA:.2g} microseconds"
    cases = {
        "a guarded step": (paired(result["paired_ratio"], interval), ""),
        "a step and what its guard computes, alone": (alone, seconds),
    }
    return Claim(
        key="guards",
        title="Guards",
        says="Steps with all rules of a guard beside steps with none, in turns, in the "
        "smallest step that a miniature takes.",
        beside="no guard",
        command="benchmarks.guards",
        heads=("alone",),
        rows=_told(cases),
        axis=Axis(title="a step by one without; less is better", peer="no guard"),
        source="benchmarks/results/guards.json",
        result=result,
    )


def profiles(result: Result) -> Claim:
    """Compare steps that are profiled, or could be, with steps that are not."""
    no_dearer = at_most(wanted.THE_PEER, end="low")
    most = at_most(1 + wanted.MOST_IDLE_FRACTION)
    alone = Figure(value=1 + result["idle_fraction_alone"], wanted=most)
    seconds = f"{result['idle_seconds_alone'] * MEGA:.2g} microseconds"
    cases = {
        "a step beside a profile that is not due": (
            paired(result["idle_ratio"], no_dearer),
            "",
        ),
        "a step and what such a profile computes, alone": (alone, seconds),
        "a profiled step": (paired(result["profiled_ratio"]), ""),
    }
    return Claim(
        key="profiles",
        title="Profiles",
        says="Steps of a run that asks for no profile, steps beside one that is not due, and "
        "profiled ones, in turns.",
        beside="no profile",
        command="benchmarks.profiler",
        heads=("alone",),
        rows=_told(cases),
        axis=Axis(title="a step by one without; less is better", peer="no profile"),
        source="benchmarks/results/profiler.json",
        result=result,
    )


def _told(cases: Mapping[str, tuple[Figure, str]]) -> list[Row]:
    """Make a row of each figure and the cell that explains it."""
    return [
        Row(label=label, figures={"found": figure}, cells=(cell,))
        for label, (figure, cell) in cases.items()
    ]


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
