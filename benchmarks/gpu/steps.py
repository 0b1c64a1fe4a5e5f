"""Cases of whole training steps: one way by itself, or two in turns.

A way is ours, or a peer of `benchmarks.gpu.peers`, at the shapes of the recipe that the words
compose. Rates are of the timed steps' median, in both conventions of FLOPs.
"""

import gc
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from benchmarks.gpu.device import memory_of, this_device
from benchmarks.gpu.observing import Step, kernels_of, seconds_of, take_steps
from benchmarks.gpu.ours import OurStep, compose
from benchmarks.ratios import paired_ratio
from components.config.recipe import Recipe

WARMUP, TIMED = 2, 6
PAIRS = 10  # of steps in turns
OURS = "ours"
Found = dict[str, Any]


def alone(
    words: Sequence[str], way: str = OURS, warmup: int = WARMUP, timed: int = TIMED
) -> Found:
    """Take steps one way, and look at memory, energy, graphs and kernels as well."""
    device, recipe = this_device(), compose(words)
    step = make(way, recipe, device)
    found = take_steps(step, device, warmup=warmup, timed=timed)
    # Before the profiler, which has memory of its own.
    found |= memory_of(device)
    tokens = recipe.derived.tokens_per_step
    joules = found["device_joules"]
    return {
        "parameters": recipe.derived.parameters.total,
        "tokens_per_step": tokens,
        **rates(recipe, found["step_seconds"]),
        "joules_per_token": joules and joules / (tokens * timed),
        **found,
        "kernels": kernels_of(step, device),
    }


def turns(
    words: Sequence[str], ways: Sequence[str], warmup: int = WARMUP, timed: int = PAIRS
) -> Found:
    """Take steps two ways in turns and compare them pair by pair; below 1 the first wins."""
    device, recipe = this_device(), compose(words)
    steps = {way: make(way, recipe, device) for way in ways}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(warmup + timed):
        # Whoever comes second finds a warmer device: take turns.
        for way in sorted(ways, reverse=bool(turn % 2)):
            taken = seconds_of(steps[way], device)
            if turn >= warmup:
                seconds[way].append(taken)
    middles = {way: sorted(values)[len(values) // 2] for way, values in seconds.items()}
    return {
        "tokens_per_step": recipe.derived.tokens_per_step,
        "seconds": seconds,
        "rates": {way: rates(recipe, middle) for way, middle in middles.items()},
        "ratio": paired_ratio(*(seconds[way] for way in ways)),
        **memory_of(device),
    }


def make(way: str, recipe: Recipe, device: torch.device) -> Step:
    """Build what takes the steps: ours, or `CLASS` or `CLASS:POLICY` of the peers.

    What was built before and is gone gives its memory back first.
    """
    gc.collect()
    torch.manual_seed(recipe.budget.seed)
    if way == OURS:
        return OurStep(recipe, device)
    name, _, policy = way.partition(":")
    module, _, kind = name.rpartition(".")
    peers = import_module(f"benchmarks.gpu.{module}")
    step: Step = getattr(peers, kind)(recipe, device, **({"policy": policy} if policy else {}))
    return step


def rates(recipe: Recipe, step_seconds: float) -> Found:
    """Turn the seconds of a step into tokens and FLOPs a second, without recomputation."""
    per_second = recipe.derived.tokens_per_step / step_seconds
    flops = recipe.derived.flops_per_token
    return {
        "tokens_per_second": per_second,
        "teraflops_full": per_second * flops.full / 1e12,
        "teraflops_causal": per_second * flops.causal / 1e12,
    }
