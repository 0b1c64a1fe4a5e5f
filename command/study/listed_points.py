"""A study that lists its points, those of a published work, and what the work found there."""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from command.study.schema import Names, Objective, Study, Value
from components.config.schema.types import FrozenMapping, Section
from components.errors import RecipeError

OUT_OF_MEMORY = "OOM"
MOST_POINTS = 1_000  # a grid multiplies: a stranger's could be endless
Point = FrozenMapping[Value]


class Quote(Section):
    """What the source states of the point that has the values ``at``; ``OOM``: it did not fit.

    ``place`` is the section, table, figure or line that states it.
    """

    at: Point
    value: PositiveFloat | Literal["OOM"]
    place: str


class PublishedPoints(Section):
    """Published figures of one source and unit, counted by one convention."""

    source: str
    unit: str
    convention: str
    values: Annotated[tuple[Quote, ...], Field(strict=False)]


class StudyFigure(Section):
    """The chart: ``of`` names the work's own figure, ``x`` and ``series`` keys of the points.

    Several keys are written as one label: 8/4/12.
    """

    of: str
    title: str
    x: Annotated[Names, Field(min_length=1)]
    x_title: str
    y_title: str
    series: Names
    log: Annotated[tuple[Literal["x", "y"], ...], Field(strict=False)]


class QueueLimits(Section):
    """How many runs may wait in a queue together, and how often it is asked."""

    at_once: PositiveInt
    poll_seconds: PositiveFloat


class ListedStudy(Study):
    """Points that are all tried, once; what is compared is divided by that of ``baseline``."""

    points: Annotated[tuple[Point, ...], Field(strict=False, min_length=1)]
    objective: Objective
    baseline: Point
    published: PublishedPoints
    figure: StudyFigure
    queue: QueueLimits

    def shown(self, point: Mapping[str, Value]) -> dict[str, Value]:
        """Give what a reader tells points by: their own keys, and what they count."""
        counted = self.counted(point).items()
        return {**point, **{key: value for key, value in counted if "." not in key}}

    def quotes(self, point: Mapping[str, Value]) -> tuple[Quote, ...]:
        """Return what is published of the point."""
        return tuple(quote for quote in self.published.values if _has(point, quote.at))

    @property
    def base(self) -> Mapping[str, Value] | None:
        """The point that the others are divided by."""
        return next((p for p in self.points if self.baseline and _has(p, self.baseline)), None)


def _has(point: Mapping[str, Value], at: Mapping[str, Value]) -> bool:
    return all(key in point and point[key] == value for key, value in at.items())


def spread_grid(tree: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Write ``grid``, lists of values by key, as ``points``; the last key changes fastest.

    Raises:
        RecipeError: the grid holds something else, or too many points.
    """
    grid = tree["grid"]
    if not isinstance(grid, dict) or not grid:
        raise RecipeError(f"{where}.grid", f"{grid!r} is no mapping", "write KEY: [1, 2, 4]")
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            problem = f"{values!r} is no list of values"
            raise RecipeError(f"{where}.grid.{key}", problem, f"write {key}: [1, 2, 4]")
    count = math.prod(len(values) for values in grid.values())
    if count > MOST_POINTS:
        problem = f"{count:,} points, more than {MOST_POINTS:,}"
        raise RecipeError(f"{where}.grid", problem, "search them: write space and search")
    points = [dict(zip(grid, one, strict=True)) for one in itertools.product(*grid.values())]
    return {**{key: value for key, value in tree.items() if key != "grid"}, "points": points}


def mistakes_of_listed(study: ListedStudy) -> Iterator[tuple[str, str, str]]:
    """Yield path, problem and remedy of what the parts of the study get wrong together."""
    first, *others = study.points
    for index, point in enumerate(others, start=1):
        if point.keys() != first.keys():
            yield f"points[{index}]", "has other keys than the first point", "name all keys"
        if point in study.points[:index]:
            yield f"points[{index}]", "is given twice", "keep it once"
    yield from _unmatched(study)
    yield from _undrawn(study, {**first, **study.products})


def _unmatched(study: ListedStudy) -> Iterator[tuple[str, str, str]]:
    """Tell what is said of no point, or of several."""
    named = {f"published.values[{i}].at": q.at for i, q in enumerate(study.published.values)}
    if study.baseline:
        named["baseline"] = study.baseline
    for path, at in named.items():
        count = sum(_has(point, at) for point in study.points)
        if count != 1:
            problem = f"{count} points have {dict(at)}"
            yield path, problem, "name what tells one point from the others"


def _undrawn(study: ListedStudy, known: Mapping[str, object]) -> Iterator[tuple[str, str, str]]:
    """Tell what the figure names and no point has, and names that nothing uses."""
    figure = study.figure
    for name in ("x", "series"):
        for key in getattr(figure, name):
            if key not in known:
                yield f"figure.{name}", f"no point has {key!r}", f"known: {', '.join(known)}"
    used = {f for factors in study.products.values() for f in factors}
    for key in known.keys() - used - {*figure.x, *figure.series, "recipe"}:
        if "." not in key:
            problem = f"{key!r} is no key of a recipe, and no product or figure uses it"
            yield f"points.{key}", problem, "write the whole key, as optimizer.lr"
    if "x" in figure.log and all(key in known for key in figure.x):
        places = [[study.shown(p).get(key) for key in figure.x] for p in study.points]
        if not all(_is_positive(place) for place in places):
            problem = "a logarithmic axis needs one key of positive numbers"
            yield "figure.log", problem, "name one such key as figure.x, or leave x out"


def _is_positive(place: list[Value | None]) -> bool:
    (value, *more) = place
    return not more and isinstance(value, int | float) and value is not True and value > 0
