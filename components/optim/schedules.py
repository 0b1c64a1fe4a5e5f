"""Learning-rate schedules: map the tokens before a step to a multiplier of the peak rate.

The first step of a warm-up has the rate ``warmup_from``: 0 in Megatron, the smallest rate in
Optimus. Megatron's log line of step *i* has the rate of step *i + 1*. After its end, a schedule
has its last value. :mod:`components.config.rules.data` checks the settings.
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
    """Schedule: a multiplier for every number of tokens, planned for ``total_tokens``."""

    @property
    def total_tokens(self) -> int: ...

    def __call__(self, tokens: int) -> float: ...


class Constant(ConstantSpec):
    """Constant schedule: ramps linearly from ``warmup_from`` to ``value`` and stays there."""

    def __call__(self, tokens: int) -> float:
        return _warmed(tokens, self.warmup_tokens, self.warmup_from, self.value)


class Cosine(CosineSpec):
    """Cosine schedule: ramps from ``warmup_from`` to ``start``, then decays to ``end``.

    As in Megatron's ``OptimizerParamScheduler.get_lr``, the warm-up is linear, and the half
    wave spans the rest of ``total_tokens``; https://arxiv.org/abs/1608.03983, equation 5,
    without restarts. With ``planned_tokens``, the wave is planned for more tokens and cut at
    ``total_tokens``, before it reaches ``end``. The wave omits its first ``skipped_tokens``.
    """

    def __call__(self, tokens: int) -> float:
        if tokens < self.warmup_tokens:
            return _warmed(tokens, self.warmup_tokens, self.warmup_from, self.start)
        wave_tokens = self.planned_tokens or self.total_tokens
        span = wave_tokens - self.warmup_tokens
        decayed = min(tokens, self.total_tokens) - self.warmup_tokens
        done = min((decayed + self.skipped_tokens) / span, 1.0)
        return self.end + 0.5 * (1.0 + math.cos(math.pi * done)) * (self.start - self.end)


class WarmupStableDecay(WarmupStableDecaySpec):
    """WSD: ramps linearly from ``warmup_from`` to ``start``, stays, and decays to ``end``.

    https://arxiv.org/abs/2404.06395, section 4. The decay takes the last ``decay_tokens`` of
    ``total_tokens``. With u from 0 to 1 over the decay, the shapes are 1 - u; 1 - sqrt(u), from
    https://arxiv.org/abs/2405.18392, section 3; half a cosine; and 2 x 0.5^u - 1, which
    Megatron calls exponential (its ``minus_sqrt`` is ``1-sqrt``). If the decay takes all tokens
    after the warm-up, shape 1 - u is a plain linear schedule.
    """

    def __call__(self, tokens: int) -> float:
        begin = self.total_tokens - self.decay_tokens
        if tokens <= begin:
            return _warmed(tokens, self.warmup_tokens, self.warmup_from, self.start)
        if tokens >= self.total_tokens:
            return self.end
        fraction = compute_remaining_decay(
            self.decay_shape, (tokens - begin) / self.decay_tokens
        )
        return self.end + fraction * (self.start - self.end)


class Chain(ChainSpec):
    """Chain of schedules: each starts where the previous ends, and counts its tokens from 0.

    A run that starts at token 0 with the weights of an older run needs no chain.
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


def compute_remaining_decay(shape: str, done: float) -> float:
    """Return the remaining part of a decay, from 1 to 0, after the fraction ``done``."""
    match shape:
        case "linear":
            return 1.0 - done
        case "1-sqrt":
            return 1.0 - math.sqrt(done)
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * done))
        case _:
            return 2.0 * math.pow(0.5, done) - 1.0
