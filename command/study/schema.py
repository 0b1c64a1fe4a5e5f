"""Study schema: runs of one recipe over a ``space`` to search, or over listed ``points``."""

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
from components.config.schema.types import FrozenMapping, Section, to_frozen, to_plain

if TYPE_CHECKING:
    Value = Any  # the reader of a key knows its type
else:
    Value = bool | int | float | str | list[JsonValue] | dict[str, JsonValue]
ValueList = Annotated[
    tuple[Value, ...], Field(strict=False, min_length=1), AfterValidator(to_frozen)
]
KeyNames = Annotated[tuple[str, ...], Field(strict=False)]
Point = Mapping[str, Any]  # values by key
RECIPE, TOKENIZER = "recipe", "tokenizer"  # the names without a dot that a point may set
CHOSEN = (RECIPE, TOKENIZER)
TRAINED_ON = "trained_on"  # in a study of tokenizers: a source of the data, or all
PARAMETERS = "non_embedding"  # parameters of a ladder's size, without the embedding
RATIO, FLOPS = "tokens_per_parameter", "flops"  # a run's length follows from one of these
OUT_OF_MEMORY = "OOM"
CSV_NAME = r"^[\w-]+\.csv$"  # a file name, no path: the file must not choose the folder


def as_scalar(value: Any) -> Any:
    """Return a mapping or a list as one line of YAML, and any other value unchanged."""
    if not isinstance(value, Mapping | list | tuple):
        return value
    tree = to_plain(value)
    text = yaml.safe_dump(tree, default_flow_style=True, sort_keys=False, width=math.inf)
    return str(text).strip()


ByKey = Annotated[
    Mapping[str, Value],
    AfterValidator(to_frozen),
    # Digests of earlier versions, which name folders, hash these lines.
    PlainSerializer(lambda values: {key: as_scalar(value) for key, value in values.items()}),
]


NOTHING: Any = Field(default_factory=lambda: to_frozen({}))


class Objective(Section):
    """The compared figure: a key of ``results.json`` and a key of a plan's JSON.

    Null means that runs or plans do not have the figure. Keys joined with `` + `` are added.
    """

    measured: str | None = None
    planned: str | None = None


class Study(Section):
    """Runs of one recipe; ``products`` are keys computed from the varied keys.

    A name without a dot is not a key of the recipe. It is a factor of a product, or a product
    that sets no key and is shown in a figure.
    """

    name: Stem
    description: str = ""
    recipe: str
    cluster: Stem
    set: ByKey = NOTHING
    products: FrozenMapping[Annotated[tuple[int | str, ...], Field(strict=False)]] = NOTHING

    def collect_values(self, point: Point) -> dict[str, Any]:
        """Return every key that the point sets: fixed keys, the point's own, products."""
        every = {**self.set, **point, **self.count_products(point)}
        return {key: value for key, value in every.items() if "." in key or key in CHOSEN}

    def count_products(self, point: Point) -> dict[str, int]:
        """Return each product of the point's factors."""
        return {
            key: math.prod(int(point[f]) if isinstance(f, str) else f for f in factors)
            for key, factors in self.products.items()
        }


class Interval(Section):
    """Numbers from ``low`` to ``high``, both included; ``log`` searches in log scale."""

    low: float
    high: float
    log: bool = False


class Goal(Objective):
    """The compared figure, and whether it is to be maximized or minimized."""

    measured: str
    direction: Literal["maximize", "minimize"]


class QueueLimits(Section):
    """The limit of queued runs, and the interval of queue polling."""

    at_once: PositiveInt
    poll_seconds: PositiveFloat


class SearchSettings(QueueLimits):
    """Search settings. The sampler ``tpe`` uses results of ended runs, ``random`` does not."""

    sampler: Literal["tpe", "random"]
    trials: PositiveInt
    seed: int


class SearchStudy(Study):
    """A search for the best point in ``space``; ``published`` is one of its points."""

    space: FrozenMapping[ValueList | Interval]
    objective: Goal
    search: SearchSettings
    published: ByKey = NOTHING


class Quote(Section):
    """A published figure of the point with the values ``at``; ``place`` cites the source."""

    at: ByKey
    value: PositiveFloat | Literal["OOM"]
    place: str


class PublishedPoints(Section):
    """Published figures of one source and unit, counted by one convention."""

    source: str = ""
    unit: str = ""
    convention: str = ""
    values: Annotated[tuple[Quote, ...], Field(strict=False)] = ()


class StudyFigure(Section):
    """The chart: ``of`` cites the work's figure; several point keys form one label: 8/4/12."""

    of: str = ""
    title: str
    x: Annotated[KeyNames, Field(min_length=1)]
    x_title: str
    y_title: str
    series: KeyNames = ()
    log: Annotated[tuple[Literal["x", "y"], ...], Field(strict=False)] = ()


class ListedStudy(Study):
    """Points that are all run once. Figures are divided by the figure of ``baseline``.

    If several points have the baseline's values, each point is divided by the one that
    otherwise has the same values. Points are runs, or ``tokenizers`` that are trained and
    counted here. ``columns`` are additional figures, each of the result, of the plan, or plan
    over result; a plan's JSON also has the derived numbers of `action=show`, below ``derived``.
    """

    measures: Literal["runs", "tokenizers"] = "runs"
    columns: FrozenMapping[Objective] = NOTHING

    points: Annotated[tuple[ByKey, ...], Field(strict=False, min_length=1)]
    objective: Objective
    baseline: ByKey = NOTHING
    published: PublishedPoints = PublishedPoints()
    figure: StudyFigure | None = None
    queue: QueueLimits = QueueLimits(at_once=1, poll_seconds=60)

    @property
    def chart_axes(self) -> StudyFigure:
        """The file's figure, else a figure over the key with the most values."""
        if self.figure is not None:
            return self.figure
        values = {key: {str(point[key]) for point in self.points} for key in self.points[0]}
        x = max(values, key=lambda key: len(values[key]), default="")
        series = tuple(key for key, several in values.items() if key != x and len(several) > 1)
        y_title = str(self.objective.measured or self.objective.planned)
        title = f"{y_title} over {x}"
        return StudyFigure(title=title, x=(x,), x_title=x, y_title=y_title, series=series)

    def list_shown_values(self, point: Point) -> dict[str, Any]:
        """Return the values that identify a point to readers: its keys, and its counts."""
        counted = self.count_products(point).items()
        return {**point, **{key: value for key, value in counted if "." not in key}}

    def find_quotes(self, point: Point) -> tuple[Quote, ...]:
        """Return the published figures of the point."""
        return tuple(quote for quote in self.published.values if has_values(point, quote.at))

    def find_baseline(self, point: Point) -> Point | None:
        """Return the point whose figure divides this point's, or None."""
        bases = [p for p in self.points if self.baseline and has_values(p, self.baseline)]
        if len(bases) > 1:
            bases = [base for base in bases if base == {**point, **self.baseline}]
        return next(iter(bases), None)

    @property
    def needs_plans(self) -> bool:
        """Whether a figure of a plan is shown."""
        shown = (self.objective.planned, *(column.planned for column in self.columns.values()))
        return any(shown)


class RateRule(Section):
    """Learning rate by size: ``base`` times (N / ``at_parameters``) ** ``exponent``."""

    base: PositiveFloat
    at_parameters: PositiveInt
    exponent: float

    def rate_at(self, parameters: float) -> float:
        """Return the rate for a number of parameters, without the embedding."""
        return float(self.base * (parameters / self.at_parameters) ** self.exponent)


class WarmupRule(Section):
    """The schedule's warm-up key, and its fraction of a run's tokens."""

    key: str
    fraction: Annotated[float, Field(gt=0, lt=1)]


class BudgetRule(Section):
    """Lengths by FLOPs, 6 N D: ``budgets``, each for the sizes with D/N in a range."""

    budgets: Annotated[tuple[PositiveFloat, ...], Field(strict=False, min_length=3)]
    tokens_per_parameter: Annotated[tuple[PositiveFloat, PositiveFloat], Field(strict=False)]


class LadderRule(Section):
    """Small runs whose law predicts a large run: each of ``sizes`` at each length.

    Sizes are keys of the recipe and ``non_embedding``, the resulting parameter count. Lengths
    follow from ``tokens_per_parameter`` or ``flops``; the runs of the largest size or budget
    are held out of the fit and validate it.
    """

    sizes: Annotated[tuple[ByKey, ...], Field(strict=False, min_length=4)]
    tokens_per_parameter: (
        Annotated[tuple[PositiveInt, ...], Field(strict=False, min_length=1)] | None
    ) = None
    flops: BudgetRule | None = None
    lr: RateRule
    warmup: WarmupRule


class LadderStudy(ListedStudy):
    """Points by the rule ``ladder``. The measured figure is a loss in nats per token."""

    ladder: LadderRule

    def is_held_out(self, point: Point) -> bool:
        """Return whether a point has the largest size, or the largest budget."""
        if self.ladder.flops is not None:
            return bool(point[FLOPS] == self.ladder.flops.budgets[-1])
        return bool(point[PARAMETERS] == self.ladder.sizes[-1][PARAMETERS])


def has_values(point: Point, at: Point) -> bool:
    """Return whether the point has all values of ``at``."""
    return all(key in point and bool(point[key] == value) for key, value in at.items())


def point_text(point: Point) -> str:
    """Return the values of a point on one line."""
    return ", ".join(f"{key}={as_scalar(value)}" for key, value in point.items())


class Column(Section):
    """A column with cells that map to values by ``names``."""

    column: str
    names: ByKey


class Best(Section):
    """Keep the best row by ``column`` in each group of rows with equal cells in ``by``."""

    column: str
    by: KeyNames
    direction: Literal["maximize", "minimize"]


class CitedRows(Section):
    """Rows of ``file`` where each column of ``where`` has one of the listed cells.

    ``keys`` maps keys of the points to columns, and ``value`` is the column of the published
    figure. Rows that match ``out_of_memory`` did not fit; other rows without a number are
    skipped.
    """

    file: Annotated[str, StringConstraints(pattern=CSV_NAME)]
    where: FrozenMapping[KeyNames] = NOTHING
    best: Best | None = None
    keys: FrozenMapping[str | Column]
    value: str
    out_of_memory: FrozenMapping[KeyNames] = NOTHING
