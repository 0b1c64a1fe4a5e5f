"""Study schema: which runs to make of a recipe; a ``space`` to search, or listed ``points``."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    PlainSerializer,
    PositiveFloat,
    PositiveInt,
    StringConstraints,
)

from components.config.schema.sections import Stem
from components.config.schema.types import FrozenMapping, Section, freeze, thaw

if TYPE_CHECKING:
    Value = Any  # who reads a key knows its type
else:
    Value = bool | int | float | str | list[JsonValue] | dict[str, JsonValue]
Values = Annotated[tuple[Value, ...], Field(strict=False, min_length=1), AfterValidator(freeze)]
Names = Annotated[tuple[str, ...], Field(strict=False)]
Point = Mapping[str, Any]  # values by key
RECIPE, TOKENIZER = "recipe", "tokenizer"  # the names without a dot that a point may set
CHOSEN = (RECIPE, TOKENIZER)
TRAINED_ON = "trained_on"  # of a study of tokenizers: a source of the data, or all
PARAMETERS = "non_embedding"  # parameters of a ladder's size, without the embedding
RATIO, FLOPS = "tokens_per_parameter", "flops"  # what the length of a ladder's run follows from
OUT_OF_MEMORY = "OOM"
CSV_NAME = r"^[\w-]+\.csv$"  # a name, no path: the folder is not the file's to choose


def as_scalar(value: Any) -> Any:
    """Return a mapping or a list as one line of YAML, and any other value as it is."""
    if not isinstance(value, Mapping | list | tuple):
        return value
    tree = thaw(value)
    text = yaml.safe_dump(tree, default_flow_style=True, sort_keys=False, width=math.inf)
    return str(text).strip()


ByKey = Annotated[
    Mapping[str, Value],
    AfterValidator(freeze),
    # Digests of earlier versions, which name folders, are of such lines.
    PlainSerializer(lambda values: {key: as_scalar(value) for key, value in values.items()}),
]


class Objective(Section):
    """What is compared: a key of ``results.json``, and of a plan's JSON; null if none knows.

    Several keys with `` + `` between them are added.
    """

    measured: str | None
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
    set: ByKey
    products: FrozenMapping[Annotated[tuple[int | str, ...], Field(strict=False)]]

    def values(self, point: Point) -> dict[str, Any]:
        """Give every key that the point sets: the fixed ones, its own, the products."""
        every = {**self.set, **point, **self.counted(point)}
        return {key: value for key, value in every.items() if "." in key or key in CHOSEN}

    def counted(self, point: Point) -> dict[str, int]:
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

    measured: str
    direction: Literal["maximize", "minimize"]


class QueueLimits(Section):
    """How many runs may wait in a queue together, and how often it is asked."""

    at_once: PositiveInt
    poll_seconds: PositiveFloat


class SearchSettings(QueueLimits):
    """How points are chosen: ``tpe`` learns from those that ended, ``random`` does not."""

    sampler: Literal["tpe", "random"]
    trials: PositiveInt
    seed: int


class SearchStudy(Study):
    """Vary the keys of ``space`` and look for the best; ``published`` is a point of it."""

    space: FrozenMapping[Values | Interval]
    objective: Goal
    search: SearchSettings
    published: ByKey


class Quote(Section):
    """What the source states at ``place`` of the point that has the values ``at``."""

    at: ByKey
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


class StudyColumn(Section):
    """One more figure of each point: a key of its result, of its plan, or plan over result.

    A plan's JSON has what `action=show` derives, too, below ``derived``.
    """

    measured: str | None = None
    planned: str | None = None


class ListedStudy(Study):
    """Points that are all tried, once; what is compared is divided by that of ``baseline``.

    Where several points have its values, each point is divided by that of them which else has
    its own. Points are runs; or of ``tokenizers``, each trained and counted here: no run.
    """

    measures: Literal["runs", "tokenizers"] = "runs"
    columns: FrozenMapping[StudyColumn] = Field(default_factory=lambda: freeze({}))

    points: Annotated[tuple[ByKey, ...], Field(strict=False, min_length=1)]
    objective: Objective
    baseline: ByKey
    published: PublishedPoints
    figure: StudyFigure
    queue: QueueLimits

    def shown(self, point: Point) -> dict[str, Any]:
        """Give what a reader tells points by: their own keys, and what they count."""
        counted = self.counted(point).items()
        return {**point, **{key: value for key, value in counted if "." not in key}}

    def quotes(self, point: Point) -> tuple[Quote, ...]:
        """Return what is published of the point."""
        return tuple(quote for quote in self.published.values if has_values(point, quote.at))

    def base(self, point: Point) -> Point | None:
        """The point that this one is divided by."""
        bases = [p for p in self.points if self.baseline and has_values(p, self.baseline)]
        if len(bases) > 1:
            bases = [base for base in bases if base == {**point, **self.baseline}]
        return next(iter(bases), None)

    @property
    def needs_plans(self) -> bool:
        """Whether a figure of a plan is shown."""
        shown = (self.objective.planned, *(one.planned for one in self.columns.values()))
        return any(shown)


class RateRule(Section):
    """Learning rate by size: ``base`` times (N / ``at_parameters``) ** ``exponent``."""

    base: PositiveFloat
    at_parameters: PositiveInt
    exponent: float

    def at(self, parameters: float) -> float:
        """Return the rate of a model of so many parameters, without the embedding."""
        return float(self.base * (parameters / self.at_parameters) ** self.exponent)


class WarmupRule(Section):
    """The schedule's key, and which part of a run's tokens it is."""

    key: str
    fraction: Annotated[float, Field(gt=0, lt=1)]


class BudgetRule(Section):
    """Lengths by FLOPs, 6 N D: each of ``budgets`` for the sizes whose D/N is between two."""

    budgets: Annotated[tuple[PositiveFloat, ...], Field(strict=False, min_length=3)]
    tokens_per_parameter: Annotated[tuple[PositiveFloat, PositiveFloat], Field(strict=False)]


class LadderRule(Section):
    """Small runs whose law predicts a large one: each of ``sizes`` at each length.

    Sizes are keys of the recipe and ``non_embedding``, the parameters that these give. Lengths
    are by ``tokens_per_parameter``, or by ``flops``. What is largest, the size or else the
    budget, is no part of the fit and checks it.
    """

    sizes: Annotated[tuple[ByKey, ...], Field(strict=False, min_length=4)]
    tokens_per_parameter: (
        Annotated[tuple[PositiveInt, ...], Field(strict=False, min_length=1)] | None
    ) = None
    flops: BudgetRule | None = None
    lr: RateRule
    warmup: WarmupRule


class LadderStudy(ListedStudy):
    """Points by the rule ``ladder``; what is measured is a loss in nats a token."""

    ladder: LadderRule

    def is_held_out(self, point: Point) -> bool:
        """Whether a point is of the largest size, or of the largest budget."""
        if self.ladder.flops is not None:
            return bool(point[FLOPS] == self.ladder.flops.budgets[-1])
        return bool(point[PARAMETERS] == self.ladder.sizes[-1][PARAMETERS])


def has_values(point: Point, at: Point) -> bool:
    """Return whether the point has all values of ``at``."""
    return all(key in point and bool(point[key] == value) for key, value in at.items())


def point_text(point: Point) -> str:
    """Write the values of a point on one line."""
    return ", ".join(f"{key}={as_scalar(value)}" for key, value in point.items())


class Column(Section):
    """A column whose cells stand for values: ``names`` says which."""

    column: str
    names: ByKey


class Best(Section):
    """Keep the best row by ``column`` of those that are alike in the columns ``by``."""

    column: str
    by: Names
    direction: Literal["maximize", "minimize"]


class CitedRows(Section):
    """Rows of ``file`` where each column of ``where`` has one of the cells listed.

    ``keys`` says from which column a key of the points comes, ``value`` which is the published
    figure; rows like ``out_of_memory`` did not fit, others without a number are left out.
    """

    file: Annotated[str, StringConstraints(pattern=CSV_NAME)]
    where: FrozenMapping[Names]
    best: Best | None
    keys: FrozenMapping[str | Column]
    value: str
    out_of_memory: FrozenMapping[Names]
