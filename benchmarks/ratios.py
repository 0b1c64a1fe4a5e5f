"""What a benchmark measured, next to a peer or a limit, and the target.

A script describes its figures as a list of `Ratio`. `keep_result` stores them in the script's
file of `benchmarks/results` next to its raw figures, prints them, and returns the exit status.
`python -m benchmarks.speed` writes them into docs/speed.md.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from typing import Literal

from rich.table import Table
from scipy.stats import quantile_test

from benchmarks.kept import RESULTS, Row
from components.terminal import console

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """A figure of one case, with the interval of its median where one is known.

    ``peer`` is what the figure is relative to. A figure with a ``unit`` is no ratio: its peer
    is a limit. ``judged`` must reach the target: the figure, or an end of its interval.
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
        """Return whether the target is reached; a figure without a target reaches it."""
        figure = getattr(self, self.judged)
        most = self.at_most is None or figure <= self.at_most
        return bool(most and (self.at_least is None or figure >= self.at_least))

    @property
    def figure(self) -> str:
        """Return the figure and its interval in words."""
        text = f"{number(self.value)} {self.unit}".rstrip()
        if self.low is None or self.high is None or math.isnan(self.low):
            return text
        return f"{text} ({number(self.low)} to {number(self.high)})"

    @property
    def target(self) -> str:
        """Return the target in words."""
        bounds = {"at least": self.at_least, "at most": self.at_most}
        end = "" if self.judged == "value" else f" ({self.judged} end)"
        texts = [f"{word} {x:.3g} {self.unit}" for word, x in bounds.items() if x is not None]
        return " and ".join(text.rstrip() + end for text in texts)


def number(value: float) -> str:
    """Write three digits; a number above 100 has no decimals."""
    power = math.floor(math.log10(abs(value))) if value else 0
    # The rounding to three digits can carry: 0.9996 is 1.00.
    rounded = round(value, 2 - power)
    power = math.floor(math.log10(abs(rounded))) if rounded else 0
    return f"{value:,.{max(0, 2 - power)}f}"


def paired_ratio(ones: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Return the median of the ratios of pairs that were measured in turns, with its interval.

    Other work on a host slows both of a pair, so their ratio holds where the seconds do not.
    The interval is that of order statistics (Conover 1999, Practical Nonparametric Statistics,
    section 3.2), which assumes no distribution. Below six pairs it is NaN.
    """
    ratios = sorted(one / other for one, other in zip(ones, others, strict=True))
    interval = quantile_test(ratios, q=1.0, p=0.5).confidence_interval(CONFIDENCE)
    middle = len(ratios) // 2
    median = (ratios[middle] + ratios[~middle]) / 2
    return {"median": median, "low": float(interval.low), "high": float(interval.high)}


def interval(paired: Mapping[str, float]) -> Row:
    """Return the fields of a `Ratio` that a `paired_ratio` gives."""
    return {"value": paired["median"], "low": paired["low"], "high": paired["high"]}


def read_result(name: str) -> Row:
    """Read the result of a benchmark; empty where none is stored."""
    file = RESULTS / f"{name}.json"
    tree: Row = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return tree


def read_ratios(name: str) -> list[Ratio]:
    """Read the ratios of a benchmark's result, of all processors."""
    return [Ratio(**row) for row in read_result(name).get("ratios", ())]


def keep_result(name: str, tree: Row, ratios: Sequence[Ratio]) -> int:
    """Store a result, print its ratios, and return the exit status.

    ``tree`` has circumstances and raw figures. Values that an earlier result has under other
    names stay. A ratio replaces that of the same case, peer and processor.
    """
    place = {"processor": tree["machine"]["processor"], "date": tree["date"]}
    measured = [replace(ratio, **place) for ratio in ratios]
    rows = {(r.case, r.peer, r.processor): r for r in [*read_ratios(name), *measured]}
    stored = [
        {key: value for key, value in asdict(row).items() if value != getattr(Ratio, key, None)}
        for row in rows.values()
    ]
    text = json.dumps(read_result(name) | tree | {"ratios": stored}, indent=1)
    (RESULTS / f"{name}.json").write_text(f"{text}\n", "utf-8")
    return print_ratios(ratios)


def print_ratios(ratios: Sequence[Ratio]) -> int:
    """Print a line for each ratio; return 1 if a target is missed, else 0."""
    table = Table("case", "peer", "ratio", "target")
    for ratio in ratios:
        target = ratio.target if ratio.met else f"{ratio.target}: missed"
        table.add_row(ratio.case, ratio.peer, ratio.figure, target)
    console(width=120).print(table)
    return int(not all(ratio.met for ratio in ratios))
