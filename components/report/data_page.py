"""A data set's card as one self-contained HTML file, with the look of a run's report."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from components.report import numbers
from components.report.cards import Card
from components.report.document import check_destination, embedded, set_page, write_page
from components.report.figures import colour, empty_figure
from components.report.tables import Grid, TableRow

Tree = Mapping[str, Any]
_ROW_PIXELS, _FRAME_PIXELS = 22, 110


def write_card(tree: Tree, destination: Path) -> Path:
    """Write the page of a card, ``tree`` being what ``card.json`` holds.

    Raises:
        RecipeError: the destination is a folder.
    """
    check_destination(destination)
    parts = {
        "card": tree,
        "cards": key_figures(tree),
        "charts": {"tokens": embedded("tokens", _tokens_figure(tree["sources"]))},
        "tables": {
            "sources": sources_grid(tree["sources"]),
            "mixture": _mixture(tree["sources"]),
            "stages": _stages(tree["stages"]),
            "fertility": _fertility(tree["fertility"]),
            "inputs": _inputs(tree["sources"]),
        },
        "examples": list(_examples(tree["stages"])),
        "exact": json.dumps(tree, indent=2, ensure_ascii=False),
    }
    return write_page(set_page("data_page.html.j2", parts), destination)


def key_figures(tree: Tree) -> tuple[Card, ...]:
    """Choose what a reader of a card asks first: how much, of what, in which vocabulary."""
    totals, stages = tree["totals"], tree["stages"]
    removed = sum(
        count
        for record in stages.values()
        for source in record["sources"].values()
        for count in source["removed"].values()
    )
    notes = ("no preparation: texts as they came",) if not stages else ()
    settings = tree["tokenizer"]["settings"]
    return (
        Card(
            title="tokens to train on",
            value=numbers.count(totals["train_tokens"]),
            notes=(f"{totals['held_out_tokens']:,} held out",),
        ),
        Card(title="documents", value=numbers.count(totals["documents"]), notes=()),
        Card(title="removed", value=numbers.count(removed), notes=notes),
        Card(
            title="sources",
            value=str(len(tree["sources"])),
            notes=(f"{numbers.count(totals['input_bytes'])} bytes of input",),
        ),
        Card(
            title="vocabulary",
            value=f"{tree['tokenizer']['vocab_size']:,}",
            notes=(str(settings.get("_target_", "")).rpartition(".")[2],),
        ),
    )


def _tokens_figure(sources: Tree) -> go.Figure:
    """Draw what there is of each source, beside what a run draws of it."""
    names = list(sources)
    height = _FRAME_PIXELS + 2 * _ROW_PIXELS * len(names)
    figure = empty_figure("share of the tokens", "", height=height)
    total = max(sum(source["train_tokens"] for source in sources.values()), 1)
    there = [source["train_tokens"] / total for source in sources.values()]
    drawn = [source["mixture"].get("promised_share", 0.0) for source in sources.values()]
    for place, (name, values) in enumerate((("prepared", there), ("drawn by a run", drawn))):
        figure.add_bar(
            orientation="h", name=name, y=names, x=values, marker={"color": colour(place)}
        )
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(tickformat=".1%")
    return figure


def sources_grid(sources: Tree) -> Grid:
    """Lay out what there is of each source, and where it is from."""
    columns = ("source", "tokens", "held out", "documents", "language", "licence", "origin")
    rows = tuple(
        TableRow(
            cells=(
                name,
                f"{source['train_tokens']:,}",
                f"{source['held_out_tokens']:,}",
                f"{source['documents']:,}",
                _language(source),
                source["licence"] or numbers.ABSENT,
                source["origin"] or numbers.ABSENT,
            )
        )
        for name, source in sources.items()
    )
    return Grid(columns=columns, rows=rows)


def _language(source: Tree) -> str:
    """Name what the source claims, and what was found in it."""
    found = sorted(source["languages"].items(), key=lambda pair: (-pair[1], pair[0]))
    said = ", ".join(f"{name} {count:,}" for name, count in found[:3])
    return " / ".join(filter(None, (source["language"], said))) or numbers.ABSENT


def _mixture(sources: Tree) -> Grid:
    rows = tuple(
        TableRow(
            cells=(
                name,
                f"{source['mixture']['promised_share']:.4%}",
                f"{source['mixture']['share']:.4%}",
                f"{source['mixture']['samples']:,}",
                f"{source['mixture']['epochs']:.2f}",
            )
        )
        for name, source in sources.items()
        if source["mixture"]
    )
    return Grid(columns=("source", "promised", "drawn", "samples", "times read"), rows=rows)


def _stages(stages: Tree) -> Grid:
    rows = tuple(
        TableRow(
            cells=(
                stage,
                name,
                f"{counts['documents_in']:,}",
                f"{counts['documents_out']:,}",
                f"{counts['bytes_in']:,}",
                f"{counts['bytes_out']:,}",
                _listed({**counts["removed"], **counts["replaced"]}),
            )
        )
        for stage, record in stages.items()
        for name, counts in record["sources"].items()
    )
    columns = ("stage", "source", "documents in", "out", "bytes in", "out", "why")
    return Grid(columns=columns, rows=rows)


def _listed(counts: Tree) -> str:
    pairs = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{count:,} {name}" for name, count in pairs if count) or numbers.ABSENT


def _fertility(fertility: Tree) -> Grid:
    rows = tuple(
        TableRow(
            cells=(
                language,
                f"{one['tokens_per_word']:.3f}",
                f"{one['bytes_per_token']:.3f}",
                f"{one['documents']:,}",
            )
        )
        for language, one in fertility.items()
    )
    columns = ("language", "tokens a word", "bytes a token", "documents measured")
    return Grid(columns=columns, rows=rows)


def _inputs(sources: Tree) -> Grid:
    rows = tuple(
        TableRow(cells=(name, one["name"], f"{one['bytes']:,}", one["sha256"]))
        for name, source in sources.items()
        for one in source["inputs"]
    )
    return Grid(columns=("source", "input", "bytes", "sha256"), rows=rows)


def _examples(stages: Tree) -> Iterator[tuple[str, str, str]]:
    """List what was removed: stage, reason, and the text's beginning."""
    for stage, record in stages.items():
        for examples in record["examples"].values():
            for one in examples:
                yield stage, one["why"], one["text"]
