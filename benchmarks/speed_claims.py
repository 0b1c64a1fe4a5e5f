"""What a claim of speed is: figures beside a peer or a limit, and what was asked of them.

A claim's table and plot are made of the same figures. What a result does not say of itself is
not made up: the page names it as missing.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.kept import RESULTS

Result = Mapping[str, Any]

TOLD_OF_ITSELF = ("peer", "convention", "shape", "date", "machine", "versions")
# Results from before `benchmarks.kept.circumstances` have their shapes under these.
SHAPES = (
    *("shape", "model", "block", "recipe", "settings", "threads", "workers", "tokens_per_step"),
    *("rounds", "steps", "pairs", "bytes", "megabytes"),
)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A bound that a figure is to keep: by its value, or by an end of its interval."""

    bound: float
    least: bool
    end: Literal["value", "low", "high"] = "value"

    def met_by(self, figure: "Figure") -> bool:
        found = getattr(figure, self.end)
        return bool(found >= self.bound if self.least else found <= self.bound)

    def told(self, unit: str) -> str:
        word = "at least" if self.least else "at most"
        whole = {"value": "", "low": ", from its low end", "high": ", to its high end"}
        return f"{word} {bound(self.bound, unit)}{whole[self.end]}"


def at_least(bound: float) -> Wanted:
    """Ask for as much, or more."""
    return Wanted(bound=bound, least=True)


def at_most(bound: float, end: Literal["value", "low", "high"] = "value") -> Wanted:
    """Ask for as little, or less."""
    return Wanted(bound=bound, least=False, end=end)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What was found, in a unit, with the interval of its median where one was computed."""

    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None
    wanted: Wanted | None = None
    part_of: float | None = None  # what it is drawn by, where units differ in one plot

    @property
    def met(self) -> bool:
        """Tell whether it is what was asked for; what nobody asked for is."""
        return self.wanted is None or self.wanted.met_by(self)

    @property
    def told(self) -> str:
        interval = ""
        if self.low is not None and self.high is not None:
            interval = f" ({number(self.low)} to {number(self.high)})"
        return number(self.value, self.unit) + interval


def number(value: float, unit: str = "") -> str:
    """Write three digits, none of them dropped, and the unit; from a hundred on it is whole."""
    power = math.floor(math.log10(abs(value))) if value else 0
    # The rounding to three digits can carry: 0.9996 is 1.00.
    rounded = round(value, 2 - power)
    power = math.floor(math.log10(abs(rounded))) if rounded else 0
    return _with_unit(f"{value:,.{max(0, 2 - power)}f}", unit)


def bound(value: float, unit: str = "") -> str:
    """Write a number that somebody chose, as it was said."""
    return _with_unit(f"{value:.4g}", unit)


def _with_unit(digits: str, unit: str) -> str:
    return f"{digits} {unit}" if unit else digits


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured case: a figure for each series that has one, and cells that explain them."""

    label: str
    figures: Mapping[str, Figure]
    cells: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Axis:
    """How a claim is drawn: its axis, and who stands at 1 on it, if anyone."""

    title: str
    peer: str | None
    log: bool = False


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is compared with whom, what was found, and what the kept result says of itself."""

    key: str
    title: str
    says: str
    beside: str
    command: str
    rows: Sequence[Row]
    axis: Axis
    heads: Sequence[str] = ()
    source: str
    result: Result
    after: str = ""

    @property
    def series(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row.figures))

    def misses(self) -> Iterator[tuple[Row, str, Figure]]:
        """Give every figure that is not what was asked for."""
        for row in self.rows:
            for name, figure in row.figures.items():
                if not figure.met:
                    yield row, name, figure

    def judged(self) -> int:
        return sum(f.wanted is not None for row in self.rows for f in row.figures.values())


def read_result(stem: str) -> Result | None:
    """Read what a benchmark has kept, if it has."""
    file = RESULTS / f"{stem}.json"
    if not file.exists():
        return None
    found: Result = json.loads(file.read_text("utf-8"))
    return found


def merged(parts: Mapping[str, Result], whole: Result) -> Result:
    """Take what parts of one file say of themselves, or, from before they did, the file.

    Parts are measured one by one: each has its date.
    """
    told = [part for part in parts.values() if "convention" in part]
    if not told:
        return whole
    dates = {name: part["date"] for name, part in parts.items() if "date" in part}
    return {**told[0], **({"date": dates} if dates else {})}


def paired(interval: Mapping[str, float], wanted: Wanted | None = None) -> Figure:
    """Take a ratio as `benchmarks.paired` keeps it."""
    return Figure(
        value=interval["median"], low=interval["low"], high=interval["high"], wanted=wanted
    )


def circumstances_of(result: Result) -> tuple[dict[str, str], list[str]]:
    """Return what a result says of itself, in words, and the names of what it does not say."""
    told = {name: words(result[name]) for name in TOLD_OF_ITSELF if name in result}
    if "shape" not in told and (shape := shape_before(result)):
        told["shape"] = shape
    if "machine" not in told and "processor" in result:
        told["machine"] = words({name: result[name] for name in ("processor", "cores")})
    if "versions" not in told and "torch" in result:
        told["versions"] = words({"torch": result["torch"]})
    return told, [name for name in TOLD_OF_ITSELF if name not in told]


def shape_before(result: Result) -> str:
    """Collect the shape of a result that keeps its parts under names of their own."""
    return words({name: result[name] for name in SHAPES if name in result})


def words(value: object) -> str:
    """Write any kept value in a line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {words(v)}" for name, v in value.items())
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return " ".join(words(one) for one in value)
    return f"{value:,}" if isinstance(value, int) else str(value)
