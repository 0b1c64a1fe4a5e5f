"""Data mixture: the shares of each phase, limited by the tokens and repeats of each source."""

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


# Rounding makes the shares the same on every machine: the last bits of floats may differ.
DECIMALS = 12
SAMPLES_OFF = 2  # most samples by which a phase may exceed an exact share, see ShareTree


def tempered_shares(tokens: Mapping[str, int], temperature: float) -> dict[str, float]:
    """Return shares proportional to ``tokens ** (1 / temperature)``.

    A temperature of 1 gives the natural proportion; a higher one moves the shares toward equal:
    5 in Arivazhagan et al. 2019 (arXiv 1907.05019), 1/0.3 in mT5 (Xue et al. 2021, arXiv
    2010.11934). These papers write the exponent as 1/T and as alpha.
    """
    largest = max(tokens.values())
    weights = {name: (count / largest) ** (1 / temperature) for name, count in tokens.items()}
    total = sum(weights.values())
    return {name: round(weight / total, DECIMALS) for name, weight in weights.items()}


def limit_repeats(
    phases: Sequence[Phase],
    *,
    samples: Mapping[str, int],
    most_epochs: Mapping[str, int],
    total_samples: int,
    on_exhausted: Literal["refuse", "redistribute"],
    weights: Sequence[Fraction] | None = None,
) -> tuple[Phase, ...]:
    """Limit every source to its ``most_epochs`` over ``total_samples``; keep other ratios.

    ``weights``: one sample of a phase counts as this many of ``samples`` (longer sequences).

    "redistribute": a source at its limit gets the same, smaller fraction of its share in all
    phases. The other sources divide the rest of each phase in the same ratios as before. If one
    of them then exceeds its own limit, it is reduced too, until none does. UniMax (Chung et al.
    2023, arXiv 2304.09151, algorithm 1) does the same, starting from equal shares.

    Raises:
        RecipeError: a source exceeds its limit with ``on_exhausted: refuse``, or a phase has no
            source left that could take the rest.
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
        if on_exhausted == "refuse":
            name, drawn = next(iter(over.items()))
            epochs = float(drawn / samples[name]) if samples[name] else float("inf")
            too_often = f"but its shares read the source {epochs:.2f} times over the budget"
            share = f"set its share to at most {float(limits[name] / sum(lengths)):.6f}"
            raise RecipeError(
                f"data.sources.{name}.most_epochs",
                f"{most_epochs[name]}, {too_often}",
                f"{share}, raise the limit, or set data.on_exhausted=redistribute",
            )
        slack = SAMPLES_OFF * sum(weights)
        for name, drawn in over.items():
            scale = max(limits[name] - slack, 0) / drawn
            for part in shares:
                part[name] = part.get(name, Fraction(0)) * scale
        cut |= set(over)
        for part, phase in zip(shares, phases, strict=True):
            _fill_up(part, cut, phase)
    if not cut:
        return tuple(phases)
    return tuple(
        replace(
            phase, shares={name: round(float(share), DECIMALS) for name, share in part.items()}
        )
        for phase, part in zip(phases, shares, strict=True)
    )


def _over(
    shares: Sequence[Mapping[str, Fraction]],
    lengths: Sequence[Fraction],
    limits: Mapping[str, int],
    cut: set[str],
) -> dict[str, Fraction]:
    """Return the samples drawn from each source that exceeds its limit."""
    parts = list(zip(shares, lengths, strict=True))
    drawn = {
        name: sum((part.get(name, Fraction(0)) * length for part, length in parts), Fraction(0))
        for name in limits
        if name not in cut
    }
    return {name: count for name, count in drawn.items() if count > limits[name]}


def _fill_up(part: dict[str, Fraction], cut: set[str], phase: Phase) -> None:
    rest = 1 - sum((part[name] for name in part if name in cut), Fraction(0))
    free = sum((part[name] for name in part if name not in cut), Fraction(0))
    if free == 0:
        problem = "all sources reach most_epochs before the token budget is filled"
        remedy = "raise most_epochs, lower budget.total_tokens, or add a source without a limit"
        raise RecipeError(phase.path, problem, remedy)
    for name in part:
        if name not in cut:
            part[name] *= rest / free
