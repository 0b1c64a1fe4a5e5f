"""The key figures at the head of a report on one run."""

from dataclasses import dataclass

from components.report import numbers
from components.report.outcome import ReportEntry, RunOutcome


@dataclass(frozen=True, kw_only=True)
class Card:
    """One figure, its name, and a line or two that put it into proportion."""

    title: str
    value: str
    notes: tuple[str, ...]
    warning: str = ""


def key_figures(entry: ReportEntry) -> tuple[Card, ...]:
    """Choose what a reader asks first: how good, how much, how fast, how large."""
    return (
        _held_out(entry.outcome),
        _training(entry),
        _tokens(entry),
        _throughput(entry),
        _steps(entry),
        _parameters(entry),
    )


def _held_out(out: RunOutcome) -> Card:
    notes = []
    if out.unigram is not None:
        notes.append(f"smoothed unigram {numbers.loss(out.unigram)}")
    if out.held_out_first is not None:
        notes.append(f"first measured {numbers.loss(out.held_out_first)}")
    if out.rising is False:
        notes.append("falling or level over the last quarter")
    return Card(
        title="held-out loss",
        value=numbers.loss(out.held_out_final),
        notes=tuple(notes),
        warning="rising over the last quarter" if out.rising else "",
    )


def _training(entry: ReportEntry) -> Card:
    return Card(
        title="training loss",
        value=numbers.loss(entry.outcome.training_loss),
        notes=("of the last step", "nats per token, as all losses here"),
    )


def _tokens(entry: ReportEntry) -> Card:
    total = entry.run.recipe["budget"]["total_tokens"]
    seen = entry.outcome.tokens
    return Card(
        title="tokens",
        value=numbers.count(seen),
        notes=(f"{seen / total:.0%} of a budget of {total:,}",),
    )


def _throughput(entry: ReportEntry) -> Card:
    out = entry.outcome
    ranks = entry.run.derived["ranks"]
    devices = f"{ranks:,} rank{'s' * (ranks > 1)} on {out.device or 'an unknown device'}"
    per_device = numbers.count(out.tokens_per_second_per_device)
    return Card(
        title="tokens per second",
        value=numbers.count(out.tokens_per_second),
        notes=(
            "median of the steps",
            f"{per_device} per device; {devices}",
        ),
    )


def _steps(entry: ReportEntry) -> Card:
    notes = [f"of {entry.run.derived['steps']:,} planned"]
    if entry.outcome.seconds is not None:
        notes.append(f"in {numbers.duration(entry.outcome.seconds)}")
    return Card(title="steps", value=f"{entry.outcome.steps:,}", notes=tuple(notes))


def _parameters(entry: ReportEntry) -> Card:
    parameters = entry.run.derived["parameters"]
    total, active = parameters["total"], parameters.get("active")
    notes = [f"{total:,}"]
    if active not in {None, total}:
        notes.append(f"{numbers.count(active)} active per token")
    return Card(title="parameters", value=numbers.count(total), notes=tuple(notes))
