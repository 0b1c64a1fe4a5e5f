"""A claim's plot, as an SVG of its own: a point for each figure, a rule for the peer or limit.

It stands on a ground of its own, so that it can be read on a page of any colour, takes the
reader's light or dark, and asks for no font and no other file. Labels stand above their points:
it is as narrow as a phone.
"""

import math
from collections.abc import Iterator
from xml.etree import ElementTree as ET

from benchmarks.speed.claims import ClaimFinding
from benchmarks.speed.figures import SpeedFigure, number

WIDTH, MARGIN = 460.0, 18.0
VALUES = 92.0  # what the figures beside the points take
LABEL, LINE, GAP = 18.0, 17.0, 8.0
LEGEND_LINE, LETTER = 17.0, 7.2  # a letter of 12 pixels is hardly wider
AXIS = 44.0
LEFT, RIGHT = MARGIN, WIDTH - MARGIN - VALUES
MOST_TICKS = 6
SHAPES = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",  # a circle
    "M-3.5 -3.5h7v7h-7z",
    "M0 -4.5l4.8 8.5h-9.6z",
    "M0 -5l5 5l-5 5l-5 -5z",
    "M0 4.5l4.8 -8.5h-9.6z",
)
STYLE = """
text { font: 12px system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif; fill: #1d2127 }
.ground { fill: #fdfdfb; stroke: #dcdcd5 } .soft { fill: #5d6570 } .rule { stroke: #dcdcd5 }
.peer { stroke: #5d6570; stroke-width: 1.5 } .wanted { stroke: #b3382f; stroke-width: 3 }
.missed { fill: #b3382f; font-weight: 600 } [class^="series"] { stroke-width: 1.6 }
.label { paint-order: stroke; stroke: #fdfdfb; stroke-width: 4px }
.interval { stroke-opacity: 0.35 } [class$="interval"] { stroke-width: 5 }
.series0 { fill: #3b7dc4; stroke: #3b7dc4 } .series1 { fill: #d9652b; stroke: #d9652b }
.series2 { fill: #2f9e78; stroke: #2f9e78 } .series3 { fill: #b05cae; stroke: #b05cae }
.series4 { fill: #b8912a; stroke: #b8912a }
@media screen and (prefers-color-scheme: dark) {
text { fill: #e4e6e8 } .ground { fill: #15181c; stroke: #333a42 } .soft { fill: #9aa3ad }
.rule { stroke: #333a42 } .peer { stroke: #9aa3ad } .label { stroke: #15181c }
.wanted { stroke: #ee8278 } .missed { fill: #ee8278 }
}
"""


def draw(finding: ClaimFinding) -> str:
    """Draw what was found; the table beside has it in digits."""
    axis = finding.claim.axis
    scale = PlotScale(finding)
    svg = ET.Element("svg", xmlns="http://www.w3.org/2000/svg", role="img")
    ET.SubElement(svg, "title").text = f"{finding.claim.title}: {axis.told}"
    ET.SubElement(svg, "style").text = STYLE
    ground = ET.SubElement(svg, "rect", {"class": "ground", "rx": "6"})
    top = _legend(svg, finding, MARGIN)
    bottom = top + sum(LABEL + LINE * len(row.figures) + GAP for row in finding.rows)
    _axis(svg, scale, top, bottom, f"{axis.told}; log scale" if axis.log else axis.told)
    if axis.peer is not None:
        _line(svg, "peer", scale.place(1.0), top - 4, scale.place(1.0), bottom)
    height = top
    for row in finding.rows:
        _text(svg, row.label, LEFT, height + LABEL - 5, kind="label")
        height += LABEL
        for name, figure in row.figures.items():
            _point(svg, scale, figure, finding.series.index(name), height + LINE / 2)
            height += LINE
        height += GAP
    size = {"width": f"{WIDTH:g}", "height": f"{bottom + AXIS:g}"}
    svg.attrib |= size | {"viewBox": f"0 0 {size['width']} {size['height']}"}
    ground.attrib |= size
    ET.indent(svg, " ")
    return ET.tostring(svg, encoding="unicode") + "\n"


class PlotScale:
    """Where on the axis a value stands."""

    def __init__(self, finding: ClaimFinding) -> None:
        self.axis = finding.claim.axis
        shown = list(_shown(finding))
        low, high = min(shown), max(shown)
        if low == high:  # all at the peer, or one figure alone
            low, high = 0.9 * low, 1.1 * high
        if finding.claim.axis.log:
            pad = (high / low) ** 0.04
            self.low, self.high = low / pad, high * pad
        else:
            pad = 0.04 * (high - low)
            self.low, self.high = low - pad * (low > 0), high + pad

    def place(self, value: float) -> float:
        low, high, here = self.low, self.high, value
        if self.axis.log:
            low, high, here = math.log(low), math.log(high), math.log(here)
        share: float = (here - low) / (high - low)
        return LEFT + (RIGHT - LEFT) * share

    @property
    def start(self) -> float:
        """Where a figure's line begins: at the peer, or where there is none at the left."""
        return LEFT if self.axis.peer is None else self.place(1.0)

    def ticks(self) -> list[float]:
        found = list(self._decades() if self.axis.log else self._steps())
        if len(found) > MOST_TICKS:
            return [one for one in found if f"{one:e}".startswith("1.")]
        return found

    def _decades(self) -> Iterator[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        every = (m * 10.0**power for power in range(first, last + 1) for m in (1, 2, 5))
        return (value for value in every if self.low <= value <= self.high)

    def _steps(self) -> Iterator[float]:
        least = (self.high - self.low) / MOST_TICKS
        power = 10.0 ** math.floor(math.log10(least))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= least)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return (count * step for count in range(first, last + 1))


def drawn(figure: SpeedFigure) -> float:
    """Return a figure as its axis has it."""
    return figure.value if figure.part_of is None else figure.value / figure.part_of


def marked(figure: SpeedFigure) -> float | None:
    """Return what was asked of a figure, where the plot shows it beside the peer's line."""
    if figure.wanted is None or figure.part_of is not None:
        return None
    return figure.wanted.bound


def _shown(finding: ClaimFinding) -> Iterator[float]:
    if finding.claim.axis.peer is not None:
        yield 1.0
    elif not finding.claim.axis.log:
        yield 0.0
    for row in finding.rows:
        for figure in row.figures.values():
            yield drawn(figure)
            ends = (figure.low, figure.high, marked(figure))
            yield from (end for end in ends if end is not None)


def _legend(svg: ET.Element, finding: ClaimFinding, top: float) -> float:
    """Name series, peer and bound, and return where the rows begin."""
    figures = (figure for row in finding.rows for figure in row.figures.values())
    wanted = any(marked(figure) is not None for figure in figures)
    entries: list[tuple[str, str]] = [
        *((f"series{index}", name) for index, name in enumerate(finding.series)),
        *(
            [("peer", f"{finding.claim.axis.peer} = 1")]
            if finding.claim.axis.peer is not None
            else []
        ),
        *([("wanted", "wanted")] if wanted else []),
    ]
    left, height = LEFT, top + 8
    for kind, name in entries:
        wide = 16 + LETTER * len(name) + 14
        if left + wide > WIDTH - MARGIN and left > LEFT:
            left, height = LEFT, height + LEGEND_LINE
        if kind.startswith("series"):
            _dot(svg, kind, left + 5, height - 4)
        else:
            _line(svg, kind, left + 5, height - 9, left + 5, height + 1)
        _text(svg, name, left + 14, height, kind="soft")
        left += wide
    return height + LEGEND_LINE


def _axis(svg: ET.Element, scale: PlotScale, top: float, bottom: float, title: str) -> None:
    for tick in scale.ticks():
        place = scale.place(tick)
        _line(svg, "rule", place, top, place, bottom)
        _text(svg, f"{tick:g}", place, bottom + 14, kind="soft", anchor="middle")
    _text(svg, title, LEFT, bottom + 32, kind="soft")


def _point(
    svg: ET.Element, scale: PlotScale, figure: SpeedFigure, series: int, height: float
) -> None:
    """Draw one figure: from the peer to its place, its interval, its bound, its digits."""
    place, kind = scale.place(drawn(figure)), f"series{series}"
    _line(svg, kind, scale.start, height, place, height)
    if figure.low is not None and figure.high is not None:
        ends = [scale.place(end) for end in (figure.low, figure.high)]
        _line(svg, f"{kind} interval", ends[0], height, ends[1], height)
    if (asked := marked(figure)) is not None:
        bound = scale.place(asked)
        _line(svg, "wanted", bound, height - 6, bound, height + 6)
    _dot(svg, kind, place, height)
    digits = number(figure.value, figure.unit)
    mark = "" if figure.met else " missed"
    _text(svg, digits + mark, RIGHT + 10, height + 4, kind="" if figure.met else "missed")


def _dot(svg: ET.Element, kind: str, x: float, y: float) -> None:
    """Mark a place; each series has a shape of its own, for paper without colours."""
    shape = SHAPES[int(kind.removeprefix("series"))]
    place = {"transform": f"translate({x:.1f} {y:.1f})"}
    ET.SubElement(svg, "path", {"class": kind, "d": shape, **place})


def _line(svg: ET.Element, kind: str, x1: float, y1: float, x2: float, y2: float) -> None:
    places = zip(("x1", "y1", "x2", "y2"), (x1, y1, x2, y2), strict=True)
    ends = {name: f"{place:.1f}" for name, place in places}
    ET.SubElement(svg, "line", {"class": kind, **ends})


def _text(
    svg: ET.Element, words: str, x: float, y: float, *, kind: str = "", anchor: str = "start"
) -> None:
    named = {"class": kind} if kind else {}
    shape = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}
    ET.SubElement(svg, "text", named | shape).text = words.replace("`", "")
