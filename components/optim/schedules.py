"""Learning-rate schedules: tokens seen before a step to a multiplier of the peak rate.

The first step of a warm-up has the rate ``warmup_from``: 0 in Megatron, the smallest rate in
Optimus. Megatron logs a step after it moved its clock on: the rate in its log line of step *i*
is that of step *i + 1*. Past its end a schedule keeps its last value. What must hold between
the numbers of one is in :mod:`components.config.rules.data`.
"""

import math
from itertools import accumulate
from typing import Protocol, cast, runtime_checkable

from components.config.optim_spec.schedules import (
    ChainSpec,
    ConstantSpec,
    CosineSpec,
    WarmupStableDecaySpec,
)


@runtime_checkable
class Schedule(Protocol):
    """A multiplier for every number of tokens, planned for ``total_tokens``."""

    @property
    def total_tokens(self) -> int: ...

    def __call__(self, tokens: int) -> float: ...


class Constant(ConstantSpec):
    """Ramp linearly from ``warmup_from`` to ``value`` and stay there."""

    def __call__(self, tokens: int) -> float:
        return _warmed(tokens, self.warmup_tokens, self.warmup_from, self.value)


class Cosine(CosineSpec):
    """Ramp linearly from ``warmup_from`` to ``start``, then fall by half a cosine to ``end``.

    Megatron's ``OptimizerParamScheduler.get_lr``: the half wave spans what the warm-up leaves
    of ``total_tokens``; https://arxiv.org/abs/1608.03983, equation 5, without restarts. A wave
    planned for more, ``planned_tokens``, is cut at ``total_tokens`` before it reaches ``end``;
    one that is not begun at its start is ``skipped_tokens`` further from the warm-up's end on.
    """

    def __call__(self, tokens: int) -> float:
        if tokens < self.warmup_tokens:
            return _warmed(tokens, self.warmup_tokens, self.warmup_from, self.start)
        whole = self.planned_tokens or self.total_tokens
        span = whole - self.warmup_tokens
        seen = min(tokens, self.total_tokens) - self.warmup_tokens
        done = min((seen + self.skipped_tokens) / span, 1.0)
        return self.end + 0.5 * (1.0 + math.cos(math.pi * done)) * (self.start - self.end)


class WarmupStableDecay(WarmupStableDecaySpec):
    """Ramp linearly from ``warmup_from`` to ``start``, stay, and fall over ``decay_tokens``.

    WSD, https://arxiv.org/abs/2404.06395, section 4; the decay is the last part of
    ``total_tokens``. With u from 0 to 1 over it the shapes are 1 - u; 1 - sqrt(u), of
    https://arxiv.org/abs/2405.18392, section 3; half a cosine; and 2 x 0.5^u - 1, which
    Megatron calls exponential (its ``minus_sqrt`` is ``1-sqrt``). All end exactly at ``end``.
    A decay that takes all that the warm-up leaves is a plain linear schedule.
    """

    def __call__(self, tokens: int) -> float:
        begin = self.total_tokens - self.decay_tokens
        if tokens <= begin:
            return _warmed(tokens, self.warmup_tokens, self.warmup_from, self.start)
        if tokens >= self.total_tokens:
            return self.end
        left = remaining(self.decay_shape, (tokens - begin) / self.decay_tokens)
        return self.end + left * (self.start - self.end)


class Chain(ChainSpec):
    """Run schedules one after another, each over its own ``total_tokens``, in the order given.

    A phase begins at the token at which the one before it ends, and counts from 0. A run that
    begins at token 0 on the weights of an older run needs no chain.
    """

    @property
    def total_tokens(self) -> int:
        return sum(phase.total_tokens for phase in self._schedules())

    def __call__(self, tokens: int) -> float:
        phases = self._schedules()
        ends = list(accumulate(phase.total_tokens for phase in phases))
        current = next((i for i, end in enumerate(ends) if tokens < end), len(phases) - 1)
        return phases[current](tokens - (ends[current] - phases[current].total_tokens))

    def _schedules(self) -> list[Schedule]:
        return [cast("Schedule", phase) for phase in self.phases.values()]


def _warmed(tokens: int, warmup_tokens: int, warmup_from: float, value: float) -> float:
    if tokens >= warmup_tokens:
        return value
    return warmup_from + (value - warmup_from) * tokens / warmup_tokens


def remaining(shape: str, done: float) -> float:
    """Return what is left of a decay of which a part is done: from 1 to 0."""
    match shape:
        case "linear":
            return 1.0 - done
        case "1-sqrt":
            return 1.0 - math.sqrt(done)
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * done))
        case _:
            return 2.0 * math.pow(0.5, done) - 1.0
