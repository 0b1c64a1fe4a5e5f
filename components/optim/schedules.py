"""Learning-rate schedules: tokens seen before a step to a multiplier of the peak rate.

The first step of a warm-up has the rate ``warmup_from``: 0 in Megatron, the smallest rate in
Optimus. Megatron logs a step after it moved its clock on: the rate in its log line of step *i*
is that of step *i + 1*. Past its end a schedule keeps its last value. What must hold between
the numbers of one is in :mod:`components.config.rules.data`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol, runtime_checkable

from components.ranges import Count, Share, Tokens


@runtime_checkable
class Schedule(Protocol):
    """A multiplier for every number of tokens, planned for ``total_tokens``."""

    @property
    def total_tokens(self) -> int: ...

    def __call__(self, tokens: int) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Constant:
    """Ramp linearly from ``warmup_from`` to ``value`` and stay there."""

    total_tokens: Count
    warmup_tokens: Tokens
    warmup_from: Share
    value: Share

    def __call__(self, tokens: int) -> float:
        return _warmed(tokens, self.warmup_tokens, self.warmup_from, self.value)


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Ramp linearly from ``warmup_from`` to ``start``, then fall by half a cosine to ``end``.

    Megatron's ``OptimizerParamScheduler.get_lr``: the half wave spans what the warm-up leaves
    of ``total_tokens``; https://arxiv.org/abs/1608.03983, equation 5, without restarts.
    """

    total_tokens: Count
    warmup_tokens: Tokens
    warmup_from: Share
    start: Share
    end: Share

    def __call__(self, tokens: int) -> float:
        if tokens < self.warmup_tokens:
            return _warmed(tokens, self.warmup_tokens, self.warmup_from, self.start)
        if tokens >= self.total_tokens:
            return self.end
        done = (tokens - self.warmup_tokens) / (self.total_tokens - self.warmup_tokens)
        return self.end + 0.5 * (1.0 + math.cos(math.pi * done)) * (self.start - self.end)


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Run schedules one after another, each over its own ``total_tokens``, in the order given.

    A phase begins at the token at which the one before it ends, and counts from 0. A run that
    begins at token 0 on the weights of an older run needs no chain.
    """

    phases: Mapping[str, Schedule]

    @property
    def total_tokens(self) -> int:
        return sum(phase.total_tokens for phase in self.phases.values())

    def __call__(self, tokens: int) -> float:
        phases = list(self.phases.values())
        ends = list(accumulate(phase.total_tokens for phase in phases))
        current = next((i for i, end in enumerate(ends) if tokens < end), len(phases) - 1)
        return phases[current](tokens - (ends[current] - phases[current].total_tokens))


def _warmed(tokens: int, warmup_tokens: int, warmup_from: float, value: float) -> float:
    if tokens >= warmup_tokens:
        return value
    return warmup_from + (value - warmup_from) * tokens / warmup_tokens
