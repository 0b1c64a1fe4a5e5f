"""Ratios of benchmarks: a figure relative to a peer or a limit, and its target.

A script returns its figures as a list of `Ratio`. `save_result` stores them with the raw
figures in the script's file of `benchmarks/results`, prints them and returns the exit status.
`python -m benchmarks.speed` writes them into docs/speed.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from typing import Literal

from rich.table import Table
from scipy.stats import quantile_test

from benchmarks.results_store import (
    RESULTS,
    ResultRow,
    benchmark_context,
    read_tree,
    save_tree,
)
from components.terminal import create_console

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """A figure of one case, with the interval of its median if it has one.

    The figure is relative to ``peer``. If it has a ``unit``, it is not a ratio and the peer is
    a limit. ``judged`` names the value that must reach the target.
    """

    case: str
    peer: str
    value: float
    _: KW_ONLY
    low: float | None = None
    high: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    judged: Literal["value", "low", "high"] = "value"
    unit: str = ""
    processor: str = ""
    date: str = ""

    @property
    def has_target(self) -> bool:
        return self.at_least is not None or self.at_most is not None

    @property
    def met(self) -> bool:
        """Return whether the figure reaches its target; True without a target."""
        figure = getattr(self, self.judged)
        most = self.at_most is None or figure <= self.at_most
        return bool(most and (self.at_least is None or figure >= self.at_least))

    @property
    def figure(self) -> str:
        """Return the figure and its interval as text."""
        text = f"{format_number(self.value)} {self.unit}".rstrip()
        if self.low is None or self.high is None or math.isnan(self.low):
            return text
        return f"{text} ({format_number(self.low)} to {format_number(self.high)})"

    @property
    def target(self) -> str:
        """Return the target as text."""
        bounds = {"at least": self.at_least, "at most": self.at_most}
        end = "" if self.judged == "value" else f" ({self.judged} end)"
        texts = [f"{word} {x:.3g} {self.unit}" for word, x in bounds.items() if x is not None]
        return " and ".join(text.rstrip() + end for text in texts)


def format_number(value: float) -> str:
    """Format a number with three digits; a number above 100 has no decimals."""
    power = math.floor(math.log10(abs(value))) if value else 0
    # Rounding to three digits can carry: 0.9996 is 1.00.
    rounded = round(value, 2 - power)
    power = math.floor(math.log10(abs(rounded))) if rounded else 0
    return f"{value:,.{max(0, 2 - power)}f}"


def paired_ratio(values: Sequence[float], peers: Sequence[float]) -> dict[str, float]:
    """Return the median of the ratios of alternately measured pairs, with its interval.

    Other work on a host slows both values of a pair, so the ratio is valid even if the seconds
    are not. The interval comes from order statistics (Conover 1999, Practical Nonparametric
    Statistics, section 3.2), without an assumed distribution. Below six pairs it is NaN.
    """
    ratios = sorted(value / peer for value, peer in zip(values, peers, strict=True))
    interval = quantile_test(ratios, q=1.0, p=0.5).confidence_interval(CONFIDENCE)
    middle = len(ratios) // 2
    median = (ratios[middle] + ratios[~middle]) / 2
    return {"median": median, "low": float(interval.low), "high": float(interval.high)}


def to_interval(paired: Mapping[str, float]) -> ResultRow:
    """Return a `paired_ratio` as fields of a `Ratio`."""
    return {"value": paired["median"], "low": paired["low"], "high": paired["high"]}


def read_result(name: str) -> ResultRow:
    """Read the result of a benchmark; empty if there is no result."""
    return read_tree(RESULTS / f"{name}.json")


def read_ratios(name: str) -> list[Ratio]:
    """Read the stored ratios of a benchmark, for all processors."""
    return [Ratio(**row) for row in read_result(name).get("ratios", ())]


def save_benchmark(
    name: str, shape: Mapping[str, object], figures: ResultRow, ratios: Sequence[Ratio]
) -> int:
    """Save a benchmark of `benchmarks/data/conventions.yaml`; see `save_result`."""
    return save_result(name, benchmark_context(name, shape) | figures, ratios)


def save_result(name: str, tree: ResultRow, ratios: Sequence[Ratio]) -> int:
    """Save a result, print its ratios, and return the exit status.

    ``tree`` has the context and the raw figures. It replaces equal keys of an earlier result.
    A ratio replaces the ratio of the same case, peer and processor.
    """
    origin = {"processor": tree["machine"]["processor"], "date": tree["date"]}
    measured = [replace(ratio, **origin) for ratio in ratios]
    rows = {(r.case, r.peer, r.processor): r for r in [*read_ratios(name), *measured]}
    stored = [
        {key: value for key, value in asdict(row).items() if value != getattr(Ratio, key, None)}
        for row in rows.values()
    ]
    save_tree(RESULTS / f"{name}.json", read_result(name) | tree | {"ratios": stored})
    return print_ratios(ratios)


def print_ratios(ratios: Sequence[Ratio]) -> int:
    """Print a table of ratios; return 1 if one misses its target, else 0."""
    table = Table("case", "peer", "ratio", "target")
    for ratio in ratios:
        target = ratio.target if ratio.met else f"{ratio.target}: missed"
        table.add_row(ratio.case, ratio.peer, ratio.figure, target)
    create_console(width=120).print(table)
    return int(not all(ratio.met for ratio in ratios))
