"""A proposed mixture as one self-contained HTML file: shares, intervals, laws and runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import plotly.graph_objects as go

from components.report.figures import colour, empty_figure
from components.report.pages import embedded, set_page, write_page
from components.report.prediction import mixture_tables as tables
from components.report.prediction.tables import pairs
from components.report.tables import Card
from components.scaling.mixture import MixtureProposal


@dataclass(frozen=True, kw_only=True)
class ProposedMixture:
    """What the page says in words; ``words`` are what to put into the recipe."""

    title: str
    convention: str
    notes: tuple[str, ...]
    epochs: Mapping[str, float]
    words: str
    again: str


def write_mixture(said: ProposedMixture, found: MixtureProposal, destination: Path) -> Path:
    """Write the page whole or not at all."""
    parts = {
        "said": said,
        "found": found,
        "cards": _cards(found),
        "chart": embedded("mixture", mixture_figure(found)),
        "tables": {
            "shares": tables.shares_grid(found, said.epochs),
            "loss": pairs("by the laws", tables.mixture_rows(found)),
            "losses": tables.losses_grid(found),
            "runs": tables.mixture_runs_grid(found),
        },
    }
    return write_page(set_page("prediction/mixture.html.j2", parts), destination)


def _cards(found: MixtureProposal) -> tuple[Card, ...]:
    gain = found.gain
    (apart,) = (one.error for one in found.runs if one.held_out)
    worst = max(found.laws, key=lambda one: one.left_out)
    return (
        Card("gain", f"{gain.value:+.3f}", (f"{gain.low:+.3f} to {gain.high:+.3f} nats",)),
        Card("proposed", f"{found.proposed.value:.3f}", ("weighted loss, nats a token",)),
        Card("own mixture", f"{found.own.value:.3f}", ("weighted loss by the same laws",)),
        Card("held-out run", f"{apart:+.2%}", ("off by",)),
        Card("left-out runs", f"{worst.left_out:.2%}", (f"off by, median; {worst.source}",)),
    )


def mixture_figure(found: MixtureProposal) -> go.Figure:
    """Draw each source's shares: tried ones as marks, own and proposed beside each other."""
    figure = empty_figure("", "share of the tokens", height=440)
    figure.update_layout(margin={"t": 60}, barmode="group")
    figure.update_xaxes(type="category")
    figure.update_yaxes(rangemode="tozero")
    names = [one.source for one in found.shares]
    figure.add_bar(
        x=names,
        y=[one.own for one in found.shares],
        name="own",
        marker={"color": colour(0), "opacity": 0.55},
    )
    proposed = [one.proposed for one in found.shares]
    figure.add_bar(
        x=names, y=[one.value for one in proposed], name="proposed",
        marker={"color": colour(1), "opacity": 0.75},
        error_y={
            "array": [max(one.high - one.value, 0.0) for one in proposed],
            "arrayminus": [max(one.value - one.low, 0.0) for one in proposed],
        },
    )  # fmt: skip
    marks = [
        (name, run.shares[one.source])
        for name, one in zip(names, found.shares, strict=True)
        for run in found.runs
    ]
    figure.add_scatter(
        x=[name for name, _ in marks], y=[share for _, share in marks], name="tried",
        mode="markers", marker={"color": colour(2), "size": 7, "symbol": "line-ew-open"},
    )  # fmt: skip
    return figure
