"""The claims about runs: what stands around and between their steps."""

import statistics
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
    limit = wanted.MOST_FIRST_SECONDS
    firsts, imports = result["first_step_seconds"], result["imports_seconds"]
    middle = Figure(
        value=statistics.median(firsts), unit="s", wanted=at_most(limit), part_of=limit
    )
    cases = {"a start until its first step, the median": (middle, "")}
    for place, (seconds, alone) in enumerate(zip(firsts, imports, strict=True), 1):
        one = Figure(value=seconds, unit="s", part_of=limit)
        cases[f"start {place}"] = (one, f"{alone:.1f} s")
    parts = {
        "between the steps, of the run's time": ("outside_fraction", wanted.MOST_OUTSIDE),
        "reading batches, of the run's time": ("loading_fraction", wanted.MOST_LOADING),
    }
    for label, (name, share) in parts.items():
        most, found = PERCENT * share, PERCENT * result[name]
        part = Figure(value=found, unit="%", wanted=at_most(most), part_of=most)
        cases[label] = (part, "")
    return Claim(
        key="whole_run",
        title="The whole run",
        says="The command on prepared data, from its start until its first step, some times in "
        "turn: the first may find nothing in the system's memory, the median counts. And a "
        "run's time outside of steps. There is no peer: the limits are ours.",
        beside="our limits",
        command="benchmarks.whole_run",
        heads=("an import alone",),
        rows=_told(cases),
        axis=Axis(
            title="found, as a part of what is allowed; less is better",
            peer="allowed",
            log=True,
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
