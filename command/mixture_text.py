"""The mixture that a recipe promises, in the terminal: a line for each phase and each limit."""

from collections.abc import Iterator, Mapping
from itertools import pairwise

from components.spec.data import Data
from components.spec.recipe import Recipe


def mixture_lines(recipe: Recipe) -> Iterator[str]:
    """Say what is drawn from which token on, and what no source may exceed."""
    length = recipe.budget.sequence_length
    starts = [first for first, _, _ in recipe.data_phases]
    ends = pairwise([*starts, recipe.total_samples])
    for (_, _, shares), (start, end) in zip(recipe.data_phases, ends, strict=True):
        place = f"tokens {start * length:,} to {end * length:,}"
        yield f"mixture, {place}: {_by_share(shares) if shares else _rule(recipe.data)}"
    limits = [
        f"{name} {source.most_epochs} times"
        for name, source in recipe.data.sources.items()
        if source.most_epochs is not None
    ]
    if limits:
        yield f"read at most: {', '.join(limits)}; what is beyond is {recipe.data.surplus}"


def _by_share(shares: Mapping[str, float]) -> str:
    largest_first = sorted(shares.items(), key=lambda one: -one[1])
    return ", ".join(f"{name} {share:.4%}" for name, share in largest_first)


def _rule(data: Data) -> str:
    if isinstance(data.mixture, str):
        rule = "in natural proportions"
    else:
        rule = f"by tokens ** (1 / {data.mixture.temperature:g})"
    return f"{rule}; action=prepare finds the tokens and prints the shares"
