"""A figure that was found, in its unit, the bound that it is to keep, and a row of such."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class FigureBound:
    """A bound that a figure is to keep: by its value, or by an end of its interval."""

    bound: float
    least: bool
    end: Literal["value", "low", "high"] = "value"

    def met_by(self, figure: "SpeedFigure") -> bool:
        found = getattr(figure, self.end)
        return bool(found >= self.bound if self.least else found <= self.bound)

    def told(self, unit: str) -> str:
        word = "at least" if self.least else "at most"
        whole = {"value": "", "low": ", from its low end", "high": ", to its high end"}
        return f"{word} {bound(self.bound, unit)}{whole[self.end]}"


def at_least(bound: float) -> FigureBound:
    """Ask for as much, or more."""
    return FigureBound(bound=bound, least=True)


def at_most(bound: float, end: Literal["value", "low", "high"] = "value") -> FigureBound:
    """Ask for as little, or less."""
    return FigureBound(bound=bound, least=False, end=end)


@dataclass(frozen=True, kw_only=True)
class SpeedFigure:
    """What was found, in a unit, with the interval of its median where one was computed."""

    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None
    wanted: FigureBound | None = None
    part_of: float | None = None  # what it is a part of, if it is no ratio to the peer

    @property
    def met(self) -> bool:
        """Return whether it is what was asked for; what nobody asked for is."""
        return self.wanted is None or self.wanted.met_by(self)

    @property
    def told(self) -> str:
        interval = ""
        if self.low is not None and self.high is not None:
            interval = f" ({number(self.low)} to {number(self.high)})"
        return number(self.value, self.unit) + interval


@dataclass(frozen=True, kw_only=True)
class SpeedRow:
    """One measured case: a figure for each series that has one, and cells that explain them."""

    label: str
    figures: Mapping[str, SpeedFigure]
    cells: Sequence[str] = ()


def number(value: float, unit: str = "") -> str:
    """Write three digits, none of them dropped, and the unit; from a hundred on it is whole."""
    power = math.floor(math.log10(abs(value))) if value else 0
    # The rounding to three digits can carry: 0.9996 is 1.00.
    rounded = round(value, 2 - power)
    power = math.floor(math.log10(abs(rounded))) if rounded else 0
    return _with_unit(f"{value:,.{max(0, 2 - power)}f}", unit)


def bound(value: float, unit: str = "") -> str:
    """Write a number that somebody chose as it was said, one that follows as figures are."""
    return _with_unit(f"{value:.3g}", unit)


def _with_unit(digits: str, unit: str) -> str:
    return f"{digits} {unit}" if unit else digits
