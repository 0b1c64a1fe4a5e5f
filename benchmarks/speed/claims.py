"""What a claim of speed is: which kept figures it shows, and what is asked of them.

The records are `benchmarks/data/speed_claims.yaml`. Fields are named as Python's format strings
name them, ``ratio[seconds]``, in a result or its view. Results keep seconds, bytes and
fractions; a figure's unit scales them.
"""

import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import yaml
from typing_extensions import override

from benchmarks.speed import wanted
from benchmarks.speed.figures import FigureBound, SpeedFigure, SpeedRow
from benchmarks.speed.results import Result, read_result
from benchmarks.speed.views import view
from command.arguments import ROOT
from components.config.schema.types import Section

CLAIMS = ROOT / "benchmarks" / "data" / "speed_claims.yaml"
SCALES = {"": 1.0, "s": 1.0, "ms": 1e3, "us": 1e6, "%": 100.0, "MB": 1e-6}


class Fields(string.Formatter):
    """Format strings whose specifications may begin with a unit: ``{peak_bytes:MB,.0f}``."""

    @override
    def format_field(self, value: Any, format_spec: str) -> str:
        unit = next((one for one in SCALES if one and format_spec.startswith(one)), "")
        scaled = SCALES[unit] * value if unit else value
        return format(scaled, format_spec.removeprefix(unit))


FIELDS = Fields()


def told(words: str, one: Result) -> str:
    """Fill a sentence, label or cell with what is kept."""
    return FIELDS.vformat(words, (), one)


def kept_at(field: str, one: Result) -> Any:
    """Find what a field names, or two with `` / `` between them, one by the other."""
    found, *by = (FIELDS.get_field(name, (), one)[0] for name in field.split(" / "))
    return found / by[0] if by else found


class Ask(Section):
    """Where a figure is kept, in which unit it is told, and what is asked of it.

    A bound is one of `wanted` or, in small letters, a field. ``part_of`` is what a
    figure is a part of, if it is no ratio to the peer.
    """

    at: str
    unit: str = ""
    at_least: str = ""
    at_most: str = ""
    end: Literal["value", "low", "high"] = "value"
    part_of: str = ""
    if_kept: bool = False

    def is_kept(self, one: Result) -> bool:
        """Return whether the figure is there; only one that says so may be missing."""
        try:
            kept_at(self.at, one)
        except KeyError:
            if not self.if_kept:
                raise
            return False
        return True

    def figure(self, one: Result) -> SpeedFigure:
        """Read the figure; a ratio that `benchmarks.paired` keeps brings its interval."""
        kept, scale = kept_at(self.at, one), SCALES[self.unit]
        interval = kept if isinstance(kept, Mapping) else {"median": kept}
        ends = {end: scale * interval[end] for end in ("low", "high") if end in interval}
        return SpeedFigure(
            value=scale * interval["median"],
            unit=self.unit,
            wanted=self._wanted(one, scale),
            part_of=scale * _bound(self.part_of, one) if self.part_of else None,
            **ends,
        )

    def _wanted(self, one: Result, scale: float) -> FigureBound | None:
        name = self.at_least or self.at_most
        if not name:
            return None
        bound = scale * _bound(name, one)
        return FigureBound(bound=bound, least=bool(self.at_least), end=self.end)


def _bound(name: str, one: Result) -> float:
    return float(getattr(wanted, name) if name.isupper() else kept_at(name, one))


class ClaimCases(Section):
    """Rows of one kind: one for each entry of the list or mapping ``over``, or one alone."""

    label: str
    figures: Mapping[str, Ask]
    cells: Sequence[str] = ()
    over: str = ""

    def rows(self, result: Result) -> Iterator[SpeedRow]:
        for one in self._entries(result):
            asked = {name: ask for name, ask in self.figures.items() if ask.is_kept(one)}
            figures = {name: ask.figure(one) for name, ask in asked.items()}
            cells = [told(cell, one) for cell in self.cells]
            yield SpeedRow(label=told(self.label, one), figures=figures, cells=cells)

    def _entries(self, result: Result) -> Sequence[Result]:
        if not self.over:
            return [result]
        kept = result[self.over]
        if isinstance(kept, Mapping):
            return [{"name": name, **one} for name, one in kept.items()]
        return list(kept)


class Axis(Section):
    """What the figures are, which way is better, and who stands at 1, if anyone."""

    title: str
    better: Literal["more", "less", ""] = ""
    peer: str | None = None

    @property
    def told(self) -> str:
        return f"{self.title}; {self.better} is better" if self.better else self.title

    def behind(self, figure: SpeedFigure) -> bool:
        """Return whether a figure is on the wrong side of the peer's."""
        if self.peer is None or figure.part_of is not None:
            return False
        return {"more": figure.value < 1, "less": figure.value > 1, "": False}[self.better]


class Claim(Section):
    """What is compared with whom, by which script, and how what it keeps is laid out."""

    key: str
    title: str
    script: str
    source: str = ""
    says: str
    beside: str
    axis: Axis
    heads: Sequence[str] = ()
    cases: Sequence[ClaimCases]
    after: str = ""
    speaks: str = ""  # what says how it was measured, if the file as a whole does not

    @property
    def kept_in(self) -> str:
        return self.source or f"benchmarks/results/{self.script}.json"

    def found(self, kept: Result) -> "ClaimFinding":
        """Lay a result out."""
        result = view(self.script, kept)
        return ClaimFinding(
            claim=self,
            rows=[row for case in self.cases for row in case.rows(result)],
            says=told(self.says, result),
            after=told(self.after, result),
            result=result[self.speaks] if self.speaks else result,
        )


@dataclass(frozen=True, kw_only=True)
class ClaimFinding:
    """A claim with what was found, and what the kept result says of itself."""

    claim: Claim
    rows: Sequence[SpeedRow]
    says: str
    after: str
    result: Result

    @property
    def series(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row.figures))

    def figures(self) -> Iterator[tuple[str, SpeedFigure]]:
        """Give every figure with the words for it."""
        several = len(self.series) > 1
        for row in self.rows:
            for name, figure in row.figures.items():
                yield f"{row.label}, {name}" if several else row.label, figure

    def misses(self) -> list[tuple[str, SpeedFigure]]:
        """Give every figure that is not what was asked for."""
        return [(words, figure) for words, figure in self.figures() if not figure.met]

    def behind(self) -> list[tuple[str, SpeedFigure]]:
        """Give what the peer betters and of which nothing was asked, worst first."""
        axis = self.claim.axis
        found = [
            (words, figure)
            for words, figure in self.figures()
            if figure.wanted is None and axis.behind(figure)
        ]
        return sorted(found, key=lambda one: one[1].value, reverse=axis.better == "less")

    def judged(self) -> int:
        return sum(figure.wanted is not None for _, figure in self.figures())


def read_claims() -> list[Claim]:
    """Read the table of claims."""
    return [Claim(**record) for record in yaml.safe_load(CLAIMS.read_text("utf-8"))]


def read_findings() -> list[ClaimFinding]:
    """Read every claim of which a result is kept, and let the planner predict what is known."""
    findings = []
    for claim in read_claims():
        kept = {"source": claim.source} if claim.source else read_result(claim.script)
        if kept is not None:
            findings.append(claim.found(kept))
    return findings
