"""Held-out losses as text, card and table, with each mean over the sources by its name.

Only the mean weighted as the mixture is comparable with the training loss, because training
seldom draws the sources evenly. Runs of earlier versions only have the plain mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from components.report import numbers
from components.report.outcome import ReportEntry, RunOutcome
from components.report.tables import Card, Grid, build_run_column
from components.run.records import HeldOutRecord

AS_MIXTURE, PLAIN_MEAN = "weighted as the mixture", "plain mean over sources"
NONE_YET = "no evaluation since step 0"
_COLUMNS = ("source", "share", "before training", "last", "smoothed unigram")


def plain_mean(held_out: HeldOutRecord) -> str:
    """Return the name of the plain mean, with the number of sources."""
    count = len(held_out.by_source)
    return f"plain mean over {count} source{'s' * (count != 1)}"


def ending_lines(held_out: HeldOutRecord) -> list[str]:
    """Describe a run's final held-out loss, one line per mean."""
    if not held_out.by_source:
        return [f"held-out loss: {NONE_YET}"]
    many = len(held_out.by_source) > 1
    parts = (
        f"held-out loss {_format_loss(held_out.final)}{f', {AS_MIXTURE}' if many else ''}",
        f", {_place(held_out)}",
        f"; {trend}" if (trend := _trend(held_out)) else "",
        f"; a smoothed unigram model: {_format_loss(held_out.unigram)}",
    )
    if not many:
        return ["".join(parts)]
    plain = f"held-out loss {_format_loss(held_out.final_unweighted)}, {plain_mean(held_out)}"
    unigram = f"a smoothed unigram model: {_format_loss(held_out.unigram_unweighted)}"
    return ["".join(parts), f"{plain}; {unigram}"]


def held_out_card(out: RunOutcome) -> Card:
    """Return the card of the last held-out loss, or of its absence."""
    held_out, title = out.held_out, "held-out loss"
    weighted, many = bool(held_out.shares), len(held_out.by_source) > 1
    before = held_out.first if weighted else held_out.first_unweighted
    unigram = held_out.unigram if weighted else held_out.unigram_unweighted
    comparisons = (("smoothed unigram", unigram), ("before training", before))
    figures = [
        f"{name} {numbers.format_loss(value)}"
        for name, value in comparisons
        if value is not None
    ]
    if not held_out.by_source:
        return Card(title, numbers.ABSENT, (NONE_YET, *figures))
    loss = held_out.final if weighted else held_out.final_unweighted
    plain = plain_mean(held_out)
    names = [] if weighted else [plain]
    if many and weighted:
        names = [AS_MIXTURE]
        figures.append(f"{plain} {numbers.format_loss(held_out.final_unweighted)}")
    trend = _trend(held_out)
    if held_out.rising is False:
        figures.append(trend)
    notes = (*names, _place(held_out), *figures)
    return Card(title, numbers.format_loss(loss), notes, trend if held_out.rising else "")


def _place(held_out: HeldOutRecord) -> str:
    if held_out.step is None or held_out.tokens is None:  # results of an earlier version
        return "at the last evaluation"
    return f"after step {held_out.step:,} ({held_out.tokens:,} tokens)"


def _trend(held_out: HeldOutRecord) -> str:
    if held_out.rising is None:
        return ""
    return f"{'rising' if held_out.rising else 'not rising'} over the last quarter"


def _format_loss(loss: float | None) -> str:
    return "not finite" if loss is None else numbers.format_loss(loss)


@dataclass(frozen=True)
class LossRow:
    """Losses of a mean or a source, and its share of the mixture, if known."""

    share: float | None
    before: float | None
    last: float | None
    unigram: float | None

    @property
    def loss_values(self) -> tuple[float | None, ...]:
        return self.before, self.last, self.unigram


def loss_rows(out: RunOutcome) -> dict[str, LossRow]:
    """Return the rows of both means, if they differ, and of the sources, most drawn first."""
    held_out, shares = out.held_out, out.held_out.shares
    first, last, unigram = out.first_by_source, held_out.by_source, held_out.unigram_by_source
    names = sorted({**first, **last}, key=lambda name: (-shares.get(name, 0.0), name))
    rows: dict[str, LossRow] = {}
    if len(names) > 1:
        plain = (
            held_out.first_unweighted,
            held_out.final_unweighted,
            held_out.unigram_unweighted,
        )
        means = {
            AS_MIXTURE: (held_out.first, held_out.final, held_out.unigram),
            PLAIN_MEAN: plain,
        }
        rows = {n: LossRow(None, *losses) for n, losses in means.items() if any(losses)}
    return rows | {
        name: LossRow(shares.get(name), first.get(name), last.get(name), unigram.get(name))
        for name in names
    }


def held_out_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Return the table of both means and each source's loss, most drawn first, run by run."""
    run, runs = build_run_column(entries)
    rows = [
        (
            *label,
            name,
            numbers.format_value(row.share, ".2%"),
            *map(numbers.format_loss, row.loss_values),
        )
        for entry, label in runs
        for name, row in loss_rows(entry.outcome).items()
    ]
    columns = (*run, *_COLUMNS)
    return Grid(columns=columns, rows=rows, text_columns=len(run) + 1, kind="figures")
