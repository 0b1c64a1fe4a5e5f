"""Learning-rate schedules: tokens seen before a step to a multiplier of the peak rate.

Tokens, not steps: a recipe can change its batch without touching its schedule. Before the first
step no token was seen, so a warm-up starts with a step of rate 0, as in Megatron. Past its end
a schedule keeps its last value, since the last step may overshoot the budget.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol, runtime_checkable

from components.errors import RecipeError


@runtime_checkable
class Schedule(Protocol):
    """A multiplier for every number of tokens, planned for ``total_tokens``."""

    @property
    def total_tokens(self) -> int: ...

    def __call__(self, tokens: int) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Constant:
    """Ramp linearly from 0 to ``value`` and stay there.

    Raises:
        RecipeError: negative counts, a warm-up as long as the whole, a value outside 0 to 1.
    """

    total_tokens: int
    warmup_tokens: int
    value: float

    def __post_init__(self) -> None:
        _check_tokens(self.total_tokens, self.warmup_tokens)
        _check_multiplier("value", self.value)

    def __call__(self, tokens: int) -> float:
        return _warmed(tokens, self.warmup_tokens, self.value)


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Ramp linearly from 0 to ``start``, then fall along half a cosine to ``end``.

    Megatron's ``OptimizerParamScheduler.get_lr``: the half wave spans what the warm-up leaves
    of ``total_tokens``; https://arxiv.org/abs/1608.03983, equation 5, without restarts.

    Raises:
        RecipeError: negative counts, a warm-up as long as the whole, a value outside 0 to 1.
    """

    total_tokens: int
    warmup_tokens: int
    start: float
    end: float

    def __post_init__(self) -> None:
        _check_tokens(self.total_tokens, self.warmup_tokens)
        _check_multiplier("start", self.start)
        _check_multiplier("end", self.end)

    def __call__(self, tokens: int) -> float:
        if tokens < self.warmup_tokens:
            return _warmed(tokens, self.warmup_tokens, self.start)
        if tokens >= self.total_tokens:
            return self.end
        done = (tokens - self.warmup_tokens) / (self.total_tokens - self.warmup_tokens)
        return self.end + 0.5 * (1.0 + math.cos(math.pi * done)) * (self.start - self.end)


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Run schedules one after another, each over its own ``total_tokens``, in the order given.

    A phase begins at the token at which the one before it ends, and counts from 0.

    Raises:
        RecipeError: no phase at all.
    """

    phases: Mapping[str, Schedule]

    def __post_init__(self) -> None:
        if not self.phases:
            raise RecipeError("schedule.phases", "is empty", "name at least one phase")

    @property
    def total_tokens(self) -> int:
        return sum(phase.total_tokens for phase in self.phases.values())

    def __call__(self, tokens: int) -> float:
        phases = list(self.phases.values())
        ends = list(accumulate(phase.total_tokens for phase in phases))
        current = next((i for i, end in enumerate(ends) if tokens < end), len(phases) - 1)
        return phases[current](tokens - (ends[current] - phases[current].total_tokens))


def _warmed(tokens: int, warmup_tokens: int, value: float) -> float:
    return value if tokens >= warmup_tokens else value * tokens / warmup_tokens


def _check_tokens(total_tokens: int, warmup_tokens: int) -> None:
    if total_tokens <= 0:
        raise RecipeError(
            "schedule.total_tokens", f"{total_tokens:,} is no token at all", "use 1 or more"
        )
    if warmup_tokens < 0:
        raise RecipeError(
            "schedule.warmup_tokens", f"{warmup_tokens:,} is negative", "use 0 for no warm-up"
        )
    if warmup_tokens >= total_tokens:
        raise RecipeError(
            "schedule.warmup_tokens",
            f"{warmup_tokens:,} leaves nothing of total_tokens = {total_tokens:,}",
            "shorten the warm-up or lengthen the schedule",
        )


def _check_multiplier(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise RecipeError(
            f"schedule.{name}",
            f"{value} is no share of the peak learning rate",
            "use a value from 0 to 1; the peak itself is optimizer.lr",
        )
