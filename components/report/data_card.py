"""Data card: its page, and the data section of a run report."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from components.errors import RecipeError
from components.report import numbers
from components.report.document import CodeBlock, Figure, Fold, ReportDocument, ReportSection
from components.report.figures import PlotlyFigure, choose_color, empty_figure
from components.report.outcome import JsonTree, ReportEntry
from components.report.tables import Card, Grid, grid_by_name, name_runs
from components.run.ownership import is_own
from components.run.records import DataRecord, read_checked, read_record
from components.run.reported import DataCard

_ROW_PIXELS, _FRAME_PIXELS = 22, 110
# Key in the card and format, by heading.
_MIXTURE = {
    "promised": ("promised_share", ".4%"),
    "drawn": ("share", ".4%"),
    "samples": ("samples", ","),
    "times read": ("epochs", ".2f"),
}
_FERTILITY = {
    "tokens per word": ("tokens_per_word", ".3f"),
    "bytes per token": ("bytes_per_token", ".3f"),
    "documents measured": ("documents", ","),
}


def data_card(tree: JsonTree) -> ReportDocument:
    """Return the page of a data card. ``tree`` is the content of ``card.json``."""
    return ReportDocument(
        kind="Data card",
        title=tree["name"],
        why=f"Key `{tree['key']}` is the hash of the inputs, all settings and the tokenizer.",
        cards=_key_figures(tree),
        sections=(*_counted(tree), *_shown(tree)),
    )


def _counted(tree: JsonTree) -> Iterator[ReportSection]:
    sources = tree["sources"]
    chart = Figure(
        "tokens",
        lambda: _tokens_figure(sources),
        "Share of each source in the prepared tokens and in the tokens that a run draws; the "
        "tables contain the numbers",
    )
    mixed = [(name, source["mixture"]) for name, source in sources.items() if source["mixture"]]
    yield ReportSection(
        "Sources",
        (_sources(sources), chart),
        "Language: the declared language, then the languages detected in the documents. Token "
        "counts include the end of each document.",
    )
    yield ReportSection(
        "Mixture",
        (grid_by_name("source", mixed, _MIXTURE),),
        "Share of each source that the recipe sets (promised) and that its order of samples "
        "reads (drawn).",
    )
    yield ReportSection(
        "Stages",
        (_stages(tree["stages"]),),
        "Documents in are the sum of documents out and removed documents. The last column "
        "counts removals and replacements by reason.",
    )


def _shown(tree: JsonTree) -> Iterator[ReportSection]:
    """Yield the sections with removed and kept examples, and with all numbers."""
    sources, fertility = tree["sources"].items(), tree["fertility"].items()
    examples = [
        Fold(f"{stage}: {example['why']}", [CodeBlock(example["text"], is_prose=True)])
        for stage, record in tree["stages"].items()
        for removed in record["examples"].values()
        for example in removed
    ]
    samples = [
        Fold(name, [CodeBlock(text, is_prose=True) for text in source["samples"]])
        for name, source in sources
    ]
    inputs = [
        (name, file["name"], f"{file['bytes']:,}", file["sha256"])
        for name, source in sources
        for file in source["inputs"]
    ]
    columns = ("source", "input", "bytes", "sha256")
    listed = Grid(
        columns=columns, rows=inputs, text_columns=2, kind="figures inputs", fold="inputs"
    )
    yield ReportSection("Examples of removed documents", examples)
    yield ReportSection(
        "Fertility",
        (grid_by_name("language", fertility, _FERTILITY),),
        "Measured on the first documents of each source. White space separates words: for "
        "Chinese, Japanese and Thai, use bytes per token.",
    )
    yield ReportSection("Samples", samples)
    yield ReportSection("Inputs", (listed,))
    exact = CodeBlock(json.dumps(tree, indent=2, ensure_ascii=False))
    yield ReportSection("Every number", (Fold("card.json", [exact]),))


def _key_figures(tree: JsonTree) -> tuple[Card, ...]:
    """Return the cards that a reader needs first: size, sources, vocabulary."""
    totals, stages, tokenizer = tree["totals"], tree["stages"], tree["tokenizer"]
    treated = [
        treatment for record in stages.values() for treatment in record["sources"].values()
    ]
    removed = sum(sum(treatment["removed"].values()) for treatment in treated)
    held_out = f"{totals['held_out_tokens']:,} held out"
    unprepared = () if stages else ("no preparation: original texts",)
    size = f"{numbers.format_count(totals['input_bytes'])} bytes of input"
    kind = str(tokenizer["settings"].get("_target_", "")).rpartition(".")[2]
    return (
        Card("tokens to train on", numbers.format_count(totals["train_tokens"]), (held_out,)),
        Card("documents", numbers.format_count(totals["documents"]), ()),
        Card("removed", numbers.format_count(removed), unprepared),
        Card("sources", str(len(tree["sources"])), (size,)),
        Card("vocabulary", f"{tokenizer['vocab_size']:,}", (kind,)),
    )


def _tokens_figure(sources: JsonTree) -> PlotlyFigure:
    """Draw each source's share of the prepared tokens and of the tokens that a run draws."""
    height = _FRAME_PIXELS + 2 * _ROW_PIXELS * len(sources)
    figure = empty_figure("share of the tokens", "", height=height)
    total = max(sum(source["train_tokens"] for source in sources.values()), 1)
    there = [source["train_tokens"] / total for source in sources.values()]
    drawn = [source["mixture"].get("promised_share", 0.0) for source in sources.values()]
    for place, (name, values) in enumerate((("prepared", there), ("drawn by a run", drawn))):
        marker = {"color": choose_color(place)}
        figure.add_bar(orientation="h", name=name, y=list(sources), x=values, marker=marker)
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_xaxes(tickformat=".1%")
    return figure


def _sources(sources: JsonTree) -> Grid:
    columns = ("source", "tokens", "held out", "documents", "language", "licence", "origin")
    rows = []
    for name, source in sources.items():
        counts = (
            f"{source[key]:,}" for key in ("train_tokens", "held_out_tokens", "documents")
        )
        detected = ", ".join(
            f"{lang} {count:,}" for lang, count in _ranked(source["languages"])[:3]
        )
        # Claimed / detected.
        language = " / ".join(filter(None, (source["language"], detected)))
        texts = (language, source["licence"], source["origin"])
        rows.append((name, *counts, *(text or numbers.ABSENT for text in texts)))
    return Grid(columns=columns, rows=rows, kind="figures")


def _ranked(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def _stages(stages: JsonTree) -> Grid:
    rows = []
    for stage, record in stages.items():
        for name, counts in record["sources"].items():
            keys = ("documents_in", "documents_out", "bytes_in", "bytes_out")
            changed = _ranked({**counts["removed"], **counts["replaced"]})
            why = ", ".join(f"{count:,} {reason}" for reason, count in changed if count)
            sizes = (f"{counts[key]:,}" for key in keys)
            rows.append((stage, name, *sizes, why or numbers.ABSENT))
    columns = ("stage", "source", "documents in", "out", "bytes in", "out", "why")
    return Grid(columns=columns, rows=rows, kind="figures")


_DRAWN = {
    "promised": ("promised_share", ".3%"),
    "drawn": ("share", ".3%"),
    "times read": ("epochs", ".2f"),
}


def mixture_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Return a table with one row per source. It is empty if no run has written results.

    For several runs, it shows what each run drew. Runs with equal values share a column.
    """
    drawn: list[JsonTree] = [(entry.run.results or {}).get("mixture", {}) for entry in entries]
    names = list(dict.fromkeys(name for shares in drawn for name in shares))

    def format_column(shares: JsonTree, key: str, form: str) -> tuple[str, ...]:
        values = (shares.get(name, {}).get(key) for name in names)
        return tuple(numbers.format_value(value, form) for value in values)

    if len(entries) == 1:
        columns = {head: format_column(drawn[0], *how) for head, how in _DRAWN.items()}
    else:
        holders: dict[tuple[str, ...], list[str]] = {}
        for entry, shares in zip(entries, drawn, strict=True):
            holders.setdefault(format_column(shares, *_DRAWN["drawn"]), []).append(entry.label)
        columns = {name_runs(labels, entries): cells for cells, labels in holders.items()}
    rows = list(zip(names, *columns.values(), strict=True))
    return Grid(columns=("source", *columns), rows=rows, kind="figures", fold="sources")


def data_grid(sections: Sequence[Mapping[str, Any]]) -> Grid:
    """Return a table with one row per prepared folder: its runs and its card's numbers."""
    heads = dict.fromkeys(card.title for section in sections for card in section["cards"])
    rows = []
    for section in sections:
        figures = {card.title: card.value for card in section["cards"]}
        cells = (figures.get(head, numbers.ABSENT) for head in heads)
        rows.append((section["folder"], section["runs"], section["key"][:12], *cells))
    columns = ("prepared in", "runs", "key", *heads)
    return Grid(columns=columns, rows=rows, text_columns=3, kind="figures")


def data_section(entries: Sequence[ReportEntry]) -> ReportSection:
    """Return the section on a run's data, or a comparison of several runs' data."""
    sections = data_sections(entries)
    if len(entries) > 1 or not sections:
        return ReportSection("Data", (data_grid(sections),))
    [data] = sections
    prepared = f"Prepared in `{data['folder']}`, key `{data['key'][:12]}`. "
    if not data["cards"]:
        return ReportSection("Data", (f"{prepared}The card no longer exists.",))
    card = "`card.html` in this folder lists samples, stages and input hashes."
    figures = " · ".join(f"{card.value} {card.title}" for card in data["cards"])
    title = f"{len(data['sources'].rows)} sources: tokens, language, licence"
    return ReportSection("Data", (figures, Fold(title, [data["sources"]])), f"{prepared}{card}")


def data_sections(entries: Sequence[ReportEntry]) -> list[dict[str, Any]]:
    """Summarize each prepared folder once, with the numbers of its card, if there is one."""
    holders: dict[str, list[str]] = {}
    sections: dict[str, dict[str, Any]] = {}
    for entry in entries:
        file = entry.run.folder / "data.json"
        if file.exists():
            record = read_record(file, DataRecord)
            holders.setdefault(record.key, []).append(entry.label)
            if record.key in sections:
                continue
            card = _card(file, record)
            sections[record.key] = {
                "folder": Path(record.folder).name,  # whole paths contain user names
                "key": record.key,
                "cards": _key_figures(card) if card else (),
                "sources": _sources(card["sources"]) if card else Grid(),
            }
    return [
        section | {"runs": name_runs(holders[key], entries)}
        for key, section in sections.items()
    ]


def _card(file: Path, data: DataRecord) -> JsonTree | None:
    """Read the card of a run's data folder, if this is safe.

    If another user owns the run, only folders below the working directory are read.
    """
    folder = Path(data.folder)
    if not is_own(file) and not folder.resolve().is_relative_to(Path.cwd().resolve()):
        return None
    try:
        card = read_checked(folder / "card.json", DataCard)
    except RecipeError:  # missing or truncated; the report does not need it
        return None
    # The folder may since have been prepared again under the same name.
    return card if card["key"] == data.key else None
