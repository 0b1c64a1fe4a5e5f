"""A study that searches: a space of values, and how points of it are chosen."""

import math
from collections.abc import Iterator
from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from components.spec.frozen import FrozenMapping
from components.spec.section import Section
from components.spec.study_fields import Objective, Study, Value, Values


class Interval(Section):
    """Numbers from ``low`` to ``high``, both included; ``log`` searches their logarithms."""

    low: float
    high: float
    log: bool = False


class Goal(Objective):
    """What is compared, and which of two figures is the better one."""

    direction: Literal["maximize", "minimize"]


class Search(Section):
    """How points are chosen: ``tpe`` learns from those that ended, ``random`` does not.

    At most ``at_once`` of ``trials`` runs are in a queue together; it is asked how they are
    every ``poll_seconds``.
    """

    sampler: Literal["tpe", "random"]
    trials: PositiveInt
    at_once: PositiveInt
    seed: int
    poll_seconds: PositiveFloat


class Searched(Study):
    """Vary the keys of ``space`` and look for the best; ``published`` is a point of it."""

    space: FrozenMapping[Values | Interval]
    objective: Goal
    search: Search
    published: FrozenMapping[Value]


def mistakes_of_searched(study: Searched) -> Iterator[tuple[str, str, str]]:
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
