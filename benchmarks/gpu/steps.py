"""Cases of whole training steps: one variant, or two in alternation.

A variant is our step or a peer of `benchmarks.gpu.peers`, at the shapes of the composed
recipe. Rates use the median of the timed steps, in both conventions of FLOPs.
"""

import gc
from collections.abc import Sequence
from importlib import import_module

import torch

from benchmarks.gpu.cases import ResultFields
from benchmarks.gpu.observing import (
    TensorStep,
    peak_memory,
    profile_kernels,
    take_steps,
    this_device,
    time_call,
)
from benchmarks.gpu.own_step import OurStep, compose_case
from benchmarks.ratios import paired_ratio
from components.config.recipe import Recipe

WARMUP, TIMED = 2, 6
PAIRS = 10  # alternating steps
OURS = "ours"


def measure_steps(
    words: Sequence[str], variant: str = OURS, warmup: int = WARMUP, timed: int = TIMED
) -> ResultFields:
    """Measure steps of one variant: time, memory, energy, graphs and kernels."""
    device, recipe = this_device(), compose_case(words)
    step = make_step(variant, recipe, device)
    figures = take_steps(step, device, warmup=warmup, timed=timed)
    # Before the profiler, which uses memory too.
    figures |= peak_memory(device)
    tokens = recipe.derived_numbers.tokens_per_step
    joules = figures["device_joules"]
    return {
        "parameters": recipe.derived_numbers.parameters.total,
        "tokens_per_step": tokens,
        **compute_rates(recipe, figures["step_seconds"]),
        "joules_per_token": joules and joules / (tokens * timed),
        **figures,
        "kernels": profile_kernels(step, device),
    }


def compare_steps(
    words: Sequence[str], variants: Sequence[str], warmup: int = WARMUP, timed: int = PAIRS
) -> ResultFields:
    """Alternate steps of two variants; a ratio below 1 means the first is faster."""
    device, recipe = this_device(), compose_case(words)
    steps = {name: make_step(name, recipe, device) for name in variants}
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(warmup + timed):
        # The second variant has a warmer device, so the order alternates.
        for name in sorted(variants, reverse=bool(number % 2)):
            step_seconds = time_call(steps[name], device)
            if number >= warmup:
                seconds[name].append(step_seconds)
    medians = {name: sorted(values)[len(values) // 2] for name, values in seconds.items()}
    return {
        "tokens_per_step": recipe.derived_numbers.tokens_per_step,
        "seconds": seconds,
        "rates": {name: compute_rates(recipe, median) for name, median in medians.items()},
        "ratio": paired_ratio(*(seconds[name] for name in variants)),
        **peak_memory(device),
    }


def make_step(variant: str, recipe: Recipe, device: torch.device) -> TensorStep:
    """Build our step, or `CLASS` or `CLASS:POLICY` of the peers.

    The memory of steps that are no longer used is freed first.
    """
    gc.collect()
    torch.manual_seed(recipe.budget.seed)
    if variant == OURS:
        return OurStep(recipe, device)
    name, _, policy = variant.partition(":")
    module, _, kind = name.rpartition(".")
    peers = import_module(f"benchmarks.gpu.{module}")
    options = {"policy": policy} if policy else {}
    step: TensorStep = getattr(peers, kind)(recipe, device, **options)
    return step


def compute_rates(recipe: Recipe, step_seconds: float) -> ResultFields:
    """Return tokens and FLOPs per second of a step, without recomputation."""
    per_second = recipe.derived_numbers.tokens_per_step / step_seconds
    flops = recipe.derived_numbers.flops_per_token
    return {
        "tokens_per_second": per_second,
        "teraflops_full": per_second * flops.full / 1e12,
        "teraflops_causal": per_second * flops.causal / 1e12,
    }
