"""Held-out losses in words, as a card and as a table: each mean over the sources by its name.

The one that is weighted as the mixture compares with the training loss. The plain mean does
not: training seldom draws the sources evenly. Runs of earlier versions have it alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from components.report import numbers
from components.report.outcome import ReportEntry, RunOutcome
from components.report.tables import Card, Grid, labelled
from components.run.records import HeldOutRecord

AS_MIXTURE, PLAIN_MEAN = "weighted as the mixture", "plain mean over sources"
NONE_YET = "no evaluation since step 0"
_COLUMNS = ("source", "share", "before training", "last", "smoothed unigram")


def plain_mean(held_out: HeldOutRecord) -> str:
    """Name the plain mean with the number of its sources."""
    count = len(held_out.by_source)
    return f"plain mean over {count} source{'s' * (count != 1)}"


def ending_lines(held_out: HeldOutRecord) -> list[str]:
    """Say what a run came to, a line for each mean."""
    if not held_out.by_source:
        return [f"held-out loss: {NONE_YET}"]
    many = len(held_out.by_source) > 1
    parts = (
        f"held-out loss {_said(held_out.final)}{f', {AS_MIXTURE}' if many else ''}",
        f", {_place(held_out)}",
        f"; {told}" if (told := _trend(held_out)) else "",
        f"; a smoothed unigram model: {_said(held_out.unigram)}",
    )
    if not many:
        return ["".join(parts)]
    plain = f"held-out loss {_said(held_out.final_unweighted)}, {plain_mean(held_out)}"
    unigram = f"a smoothed unigram model: {_said(held_out.unigram_unweighted)}"
    return ["".join(parts), f"{plain}; {unigram}"]


def held_out_card(out: RunOutcome) -> Card:
    """Put the last held-out loss into proportion, or say that there is none."""
    held_out, title = out.held_out, "held-out loss"
    weighted, many = bool(held_out.shares), len(held_out.by_source) > 1
    before = held_out.first if weighted else held_out.first_unweighted
    unigram = held_out.unigram if weighted else held_out.unigram_unweighted
    beside = (("smoothed unigram", unigram), ("before training", before))
    figures = [f"{name} {numbers.loss(value)}" for name, value in beside if value is not None]
    if not held_out.by_source:
        return Card(title, numbers.ABSENT, (NONE_YET, *figures))
    names = [AS_MIXTURE] if many and weighted else []
    names += [] if weighted else [plain_mean(held_out)]
    if many and weighted:
        figures.append(f"{plain_mean(held_out)} {numbers.loss(held_out.final_unweighted)}")
    loss, told = held_out.final if weighted else held_out.final_unweighted, _trend(held_out)
    notes = (*names, _place(held_out), *figures, *((told,) if held_out.rising is False else ()))
    return Card(title, numbers.loss(loss), notes, told if held_out.rising else "")


def _place(held_out: HeldOutRecord) -> str:
    if held_out.step is None or held_out.tokens is None:  # results alone, of an earlier version
        return "at the last evaluation"
    return f"after step {held_out.step:,} ({held_out.tokens:,} tokens)"


def _trend(held_out: HeldOutRecord) -> str:
    if held_out.rising is None:
        return ""
    return f"{'rising' if held_out.rising else 'not rising'} over the last quarter"


def _said(loss: float | None) -> str:
    return "not finite" if loss is None else numbers.loss(loss)


@dataclass(frozen=True)
class LossRow:
    """A mean or a source: its share of the mixture, if known, and what it came to."""

    share: float | None
    before: float | None
    last: float | None
    unigram: float | None

    @property
    def losses(self) -> tuple[float | None, ...]:
        return self.before, self.last, self.unigram


def loss_rows(out: RunOutcome) -> dict[str, LossRow]:
    """Collect both means, where they differ, and the sources, the most drawn first."""
    one, shares = out.held_out, out.held_out.shares
    first, last, unigram = out.first_by_source, one.by_source, one.unigram_by_source
    names = sorted({**first, **last}, key=lambda name: (-shares.get(name, 0.0), name))
    rows: dict[str, LossRow] = {}
    if len(names) > 1:
        plain = (one.first_unweighted, one.final_unweighted, one.unigram_unweighted)
        means = {AS_MIXTURE: (one.first, one.final, one.unigram), PLAIN_MEAN: plain}
        rows = {n: LossRow(None, *losses) for n, losses in means.items() if any(losses)}
    return rows | {
        name: LossRow(shares.get(name), first.get(name), last.get(name), unigram.get(name))
        for name in names
    }


def held_out_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Lay out both means and the loss of each source, the most drawn first, run after run."""
    run, runs = labelled(entries)
    rows = [
        (*label, name, numbers.written(row.share, ".2%"), *map(numbers.loss, row.losses))
        for entry, label in runs
        for name, row in loss_rows(entry.outcome).items()
    ]
    columns = (*run, *_COLUMNS)
    return Grid(columns=columns, rows=rows, text_columns=len(run) + 1, kind="figures")
