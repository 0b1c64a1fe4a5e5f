"""Data mixture: the shares of each phase, by the tokens found and the repeats allowed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Literal

from components.data.manifest import Manifest
from components.data.order import Phase, exact_share
from components.errors import RecipeError


def windows_per_source(manifest: Manifest, sequence_length: int) -> dict[str, int]:
    """Count the whole training windows of each source."""
    return {
        name: max(0, (source.train_tokens - 1) // sequence_length)
        for name, source in manifest.sources.items()
    }


# Shares computed on one machine are those of any other: its last bits are not kept.
DECIMALS = 12
SAMPLES_OFF = 2  # what a phase may draw beyond an exact share, see ShareTree


def tempered_shares(tokens: Mapping[str, int], temperature: float) -> dict[str, float]:
    """Share the draws in proportion to ``tokens ** (1 / temperature)``.

    1 is the natural proportion; the higher, the nearer to equal shares: 5 in Arivazhagan et
    al. 2019 (arXiv 1907.05019), 1/0.3 in mT5 (Xue et al. 2021, arXiv 2010.11934), which write
    the exponent as 1/T and as alpha.
    """
    most = max(tokens.values())
    weights = {name: (count / most) ** (1 / temperature) for name, count in tokens.items()}
    total = sum(weights.values())
    return {name: round(weight / total, DECIMALS) for name, weight in weights.items()}


def limit_repeats(
    phases: Sequence[Phase],
    *,
    samples: Mapping[str, int],
    most_epochs: Mapping[str, int],
    total_samples: int,
    surplus: Literal["refused", "dealt"],
    weights: Sequence[Fraction] | None = None,
) -> tuple[Phase, ...]:
    """Keep every source below its most epochs over ``total_samples``; others keep their ratios.

    A sample of a phase counts as ``weights`` says as many of ``samples``, if it is longer.

    What is dealt: a source that reaches its limit is drawn in all phases in the same, smaller
    part, and in each phase the others share the rest as before; those who then reach their own
    limit are cut in turn, until none does. UniMax (Chung et al. 2023, arXiv 2304.09151,
    algorithm 1) deals the same way from equal shares.

    Raises:
        RecipeError: a source would be repeated more often and the surplus is refused, or no
            source is left in a phase that could take it.
    """
    limits = {name: epochs * samples[name] for name, epochs in most_epochs.items()}
    starts = [min(phase.first_sample, total_samples) for phase in phases]
    weights = weights or [Fraction(1)] * len(phases)
    ends = pairwise([*starts, total_samples])
    lengths = [(b - a) * weight for (a, b), weight in zip(ends, weights, strict=True)]
    shares = [
        {name: exact_share(share) for name, share in phase.shares.items()} for phase in phases
    ]
    cut: set[str] = set()
    while over := _over(shares, lengths, limits, cut):
        if surplus == "refused":
            name, drawn = next(iter(over.items()))
            epochs = float(drawn / samples[name]) if samples[name] else float("inf")
            too_often = f"but its shares read it {epochs:.2f} times over the budget"
            share = f"give it at most {float(limits[name] / sum(lengths)):.6f} of the samples"
            raise RecipeError(
                f"data.sources.{name}.most_epochs",
                f"{most_epochs[name]}, {too_often}",
                f"{share}, raise the limit, or set data.surplus=dealt",
            )
        slack = SAMPLES_OFF * sum(weights)
        for name, drawn in over.items():
            kept = max(limits[name] - slack, 0) / drawn
            for part in shares:
                part[name] = part.get(name, Fraction(0)) * kept
        cut |= set(over)
        for part, phase in zip(shares, phases, strict=True):
            _fill_up(part, cut, phase)
    if not cut:
        return tuple(phases)
    return tuple(
        replace(phase, shares={name: round(float(one), DECIMALS) for name, one in part.items()})
        for phase, part in zip(phases, shares, strict=True)
    )


def _over(
    shares: Sequence[Mapping[str, Fraction]],
    lengths: Sequence[Fraction],
    limits: Mapping[str, int],
    cut: set[str],
) -> dict[str, Fraction]:
    """Return the samples of each source that would be drawn more often than it may."""
    parts = list(zip(shares, lengths, strict=True))
    drawn = {
        name: sum((part.get(name, Fraction(0)) * length for part, length in parts), Fraction(0))
        for name in limits
        if name not in cut
    }
    return {name: one for name, one in drawn.items() if one > limits[name]}


def _fill_up(part: dict[str, Fraction], cut: set[str], phase: Phase) -> None:
    rest = 1 - sum((part[name] for name in part if name in cut), Fraction(0))
    free = sum((part[name] for name in part if name not in cut), Fraction(0))
    if free == 0:
        problem = "every source here has reached its most_epochs before the tokens are full"
        remedy = "raise most_epochs, lower budget.total_tokens, or add a source without a limit"
        raise RecipeError(phase.path, problem, remedy)
    for name in part:
        if name not in cut:
            part[name] *= rest / free
