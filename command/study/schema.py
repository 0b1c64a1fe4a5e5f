"""Study schema: a file that says which runs to make of a recipe, and what to look for.

It searches a ``space``, or lists its ``points``.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from components.config.schema.sections import Stem
from components.config.schema.types import FrozenMapping, Section

Value = bool | int | float | str
Values = Annotated[tuple[Value, ...], Field(strict=False, min_length=1)]
Names = Annotated[tuple[str, ...], Field(strict=False)]
RECIPE = "recipe"  # the one name without a dot that a point may set


class Objective(Section):
    """What is compared: a key of a run's ``results.json``, and the same thing in a plan.

    ``planned`` is a key of what ``action=plan output=json`` prints; null if no plan knows it.
    """

    measured: str
    planned: str | None


class Study(Section):
    """Runs of one recipe; ``products`` are keys that follow from what varies.

    A name without a dot is no key of the recipe but a factor of some product, or a product
    that nothing sets and a figure counts.
    """

    name: Stem
    why: str
    recipe: str
    cluster: Stem
    set: FrozenMapping[Value]
    products: FrozenMapping[Annotated[tuple[int | str, ...], Field(strict=False)]]

    def values(self, point: Mapping[str, Value]) -> dict[str, Value]:
        """Give every key that the point sets: the fixed ones, its own, the products."""
        every = {**self.set, **point, **self.counted(point)}
        return {key: value for key, value in every.items() if "." in key or key == RECIPE}

    def counted(self, point: Mapping[str, Value]) -> dict[str, int]:
        """Multiply the factors of each product at the point."""
        return {
            key: math.prod(int(point[f]) if isinstance(f, str) else f for f in factors)
            for key, factors in self.products.items()
        }


class Interval(Section):
    """Numbers from ``low`` to ``high``, both included; ``log`` searches their logarithms."""

    low: float
    high: float
    log: bool = False


class Goal(Objective):
    """What is compared, and which of two figures is the better one."""

    direction: Literal["maximize", "minimize"]


class SearchSettings(Section):
    """How points are chosen: ``tpe`` learns from those that ended, ``random`` does not.

    At most ``at_once`` of ``trials`` runs are in a queue together; it is asked how they are
    every ``poll_seconds``.
    """

    sampler: Literal["tpe", "random"]
    trials: PositiveInt
    at_once: PositiveInt
    seed: int
    poll_seconds: PositiveFloat


class SearchStudy(Study):
    """Vary the keys of ``space`` and look for the best; ``published`` is a point of it."""

    space: FrozenMapping[Values | Interval]
    objective: Goal
    search: SearchSettings
    published: FrozenMapping[Value]


def mistakes_of_searched(study: SearchStudy) -> Iterator[tuple[str, str, str]]:
    """Yield path, problem and remedy of what the parts of the study get wrong together."""
    for key, values in study.space.items():
        if not isinstance(values, Interval):
            continue
        lowest = 0.0 if values.log else -math.inf
        if not lowest < values.low < values.high:
            problem = f"{values.low:g} to {values.high:g} is no interval"
            yield f"space.{key}", problem, "low is below high, and above 0 with log: true"
    used = {factor for factors in study.products.values() for factor in factors}
    for key in study.space.keys() - used:
        if "." not in key:
            problem = "is neither a key of a recipe nor a factor of a product"
            yield f"space.{key}", problem, "write the whole key, as optimizer.lr"
    for key in study.products:
        if "." not in key:
            problem = f"{key!r} is no key that a study may set"
            yield f"products.{key}", problem, "a key of a recipe, as budget.total_tokens"


# What a study may say of the machine: how much of it. The rest would reach job scripts.


Point = Mapping[str, Value]
