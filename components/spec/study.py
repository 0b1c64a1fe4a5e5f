"""A study: one file that says which runs to make of a recipe, and what to look for in them."""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from components.errors import RecipeError
from components.spec.frozen import FrozenMapping
from components.spec.recipe import Recipe, read_section
from components.spec.section import Section

SECTIONS = frozenset(Recipe.model_fields)
# What a study may say of the machine: how much of it. The rest would reach job scripts.
OF_CLUSTER = frozenset({"nodes", "ranks", "hours", "jobs", "smoke"})
Value = bool | int | float | str
Values = Annotated[tuple[Value, ...], Field(strict=False, min_length=1)]


class Interval(Section):
    """Numbers from ``low`` to ``high``, both included; ``log`` searches their logarithms."""

    low: float
    high: float
    log: bool = False


class Objective(Section):
    """What is compared: a key of a run's ``results.json``, and the same thing in a plan.

    ``planned`` is a key of what ``action=plan output=json`` prints; null if no plan knows it.
    """

    measured: str
    planned: str | None
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


class Study(Section):
    """Vary the keys of ``space``; ``products`` are keys that follow from them.

    A name in ``space`` without a dot is no key of the recipe but a factor of some product.
    """

    name: str
    why: str
    recipe: str
    cluster: str
    set: FrozenMapping[Value]
    space: FrozenMapping[Values | Interval]
    products: FrozenMapping[Annotated[tuple[int | str, ...], Field(strict=False)]]
    objective: Objective
    search: Search
    published: FrozenMapping[Value]

    def values(self, point: Mapping[str, Value]) -> dict[str, Value]:
        """Give every key that the point sets: the fixed ones, its own, the products."""
        return {
            **self.set,
            **{key: value for key, value in point.items() if "." in key},
            **{key: self._product(key, point) for key in self.products},
        }

    def _product(self, key: str, point: Mapping[str, Value]) -> int:
        values = (point[f] if isinstance(f, str) else f for f in self.products[key])
        return math.prod(int(value) for value in values)


def check_study(tree: Mapping[str, object], where: str) -> Study:
    """Check a study's fields, and that its parts name one another rightly.

    Raises:
        RecipeError: an unknown or missing field, an interval without an inside, a factor that
            is no whole number of the space, a key that is set twice.
    """
    study = read_section(Study, tree, where)
    for path, problem, remedy in _mistakes(study):
        raise RecipeError(f"{where}.{path}", problem, remedy)
    return study


def _mistakes(study: Study) -> Iterator[tuple[str, str, str]]:
    for key, values in study.space.items():
        if not isinstance(values, Interval):
            continue
        lowest = 0.0 if values.log else -math.inf
        if not lowest < values.low < values.high:
            problem = f"{values.low:g} to {values.high:g} is no interval"
            yield f"space.{key}", problem, "low is below high, and above 0 with log: true"
    used = {factor for factors in study.products.values() for factor in factors}
    for factor in used:
        listed = study.space.get(factor) if isinstance(factor, str) else (factor,)
        if not isinstance(listed, tuple) or not all(type(value) is int for value in listed):
            problem = f"the factor {factor!r} is no key of whole numbers in the space"
            yield "products", problem, "list its values under space"
    for key in study.space.keys() - used:
        if "." not in key:
            problem = "is neither a key of a recipe nor a factor of a product"
            yield f"space.{key}", problem, "write the whole key, as optimizer.lr"
    for key in _foreign(study):
        problem = "is no key that a study may set"
        yield key, problem, "a key of a recipe, or cluster.nodes, ranks, hours, jobs, smoke"
    keys = (study.set.keys(), study.space.keys(), study.products.keys())
    for key in (keys[0] & keys[1]) | (keys[0] & keys[2]) | (keys[1] & keys[2]):
        yield key, "is set twice", "keep it under one of set, space and products"


def _foreign(study: Study) -> Iterator[str]:
    """Yield the keys that are no recipe's, and those of the machine's profile."""
    dotted = (key for key in study.space if "." in key)
    for key in (*study.set, *study.products, *dotted):
        section, _, name = key.partition(".")
        if section not in SECTIONS or (section == "cluster" and name not in OF_CLUSTER):
            yield key
