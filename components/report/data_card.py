"""A data set's card as a page of its own, and what a run's report says of its data."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from components.errors import RecipeError
from components.report import numbers
from components.report.document import CodeBlock, Figure, Fold, ReportDocument, ReportSection
from components.report.figures import PlotlyFigure, colour, empty_figure
from components.report.outcome import ReportEntry, Tree
from components.report.tables import Card, Grid, grid_by_name, together
from components.run.ownership import is_own
from components.run.records import DataRecord, read_checked, read_record
from components.run.reported import DataCard

_ROW_PIXELS, _FRAME_PIXELS = 22, 110
# By heading, the key of the card and its format.
_MIXTURE = {
    "promised": ("promised_share", ".4%"),
    "drawn": ("share", ".4%"),
    "samples": ("samples", ","),
    "times read": ("epochs", ".2f"),
}
_FERTILITY = {
    "tokens a word": ("tokens_per_word", ".3f"),
    "bytes a token": ("bytes_per_token", ".3f"),
    "documents measured": ("documents", ","),
}


def data_card(tree: Tree) -> ReportDocument:
    """Set the page of a card, ``tree`` being what ``card.json`` holds."""
    return ReportDocument(
        kind="Data card",
        title=tree["name"],
        why=f"Key `{tree['key']}`: a hash of the inputs, of every setting and of the "
        "tokenizer.",
        cards=_key_figures(tree),
        sections=(*_counted(tree), *_shown(tree)),
    )


def _counted(tree: Tree) -> Iterator[ReportSection]:
    sources = tree["sources"]
    chart = Figure(
        "tokens",
        lambda: _tokens_figure(sources),
        "Share of each source in the prepared tokens and in those that a run draws; the "
        "tables have the numbers",
    )
    mixed = [(name, one["mixture"]) for name, one in sources.items() if one["mixture"]]
    yield ReportSection(
        "Sources",
        (_sources(sources), chart),
        "Language: what the source claims, then what was found in its documents. Tokens count "
        "the end of each document.",
    )
    yield ReportSection(
        "Mixture",
        (grid_by_name("source", mixed, _MIXTURE),),
        "What the recipe promises of each source over its budget, and what its order of "
        "samples draws.",
    )
    yield ReportSection(
        "Stages",
        (_stages(tree["stages"]),),
        "Documents in are documents out and those removed, for the reasons on the right; "
        "replaced places are counted there too.",
    )


def _shown(tree: Tree) -> Iterator[ReportSection]:
    """Show what was removed and what was kept, then every number."""
    sources, fertility = tree["sources"].items(), tree["fertility"].items()
    examples = [
        Fold(f"{stage}: {one['why']}", [CodeBlock(one["text"], is_prose=True)])
        for stage, record in tree["stages"].items()
        for removed in record["examples"].values()
        for one in removed
    ]
    samples = [
        Fold(name, [CodeBlock(text, is_prose=True) for text in source["samples"]])
        for name, source in sources
    ]
    inputs = [
        (name, one["name"], f"{one['bytes']:,}", one["sha256"])
        for name, source in sources
        for one in source["inputs"]
    ]
    columns = ("source", "input", "bytes", "sha256")
    listed = Grid(
        columns=columns, rows=inputs, text_columns=2, kind="figures inputs", fold="inputs"
    )
    yield ReportSection("Removed, for example", examples)
    yield ReportSection(
        "Fertility",
        (grid_by_name("language", fertility, _FERTILITY),),
        "On the first documents of each source. A word is what white space separates: of "
        "Chinese, Japanese or Thai, read the bytes.",
    )
    yield ReportSection("Samples", samples)
    yield ReportSection("Inputs", (listed,))
    exact = CodeBlock(json.dumps(tree, indent=2, ensure_ascii=False))
    yield ReportSection("Every number", (Fold("card.json", [exact]),))


def _key_figures(tree: Tree) -> tuple[Card, ...]:
    """Choose what a reader of a card asks first: how much, of what, in which vocabulary."""
    totals, stages, tokenizer = tree["totals"], tree["stages"], tree["tokenizer"]
    treated = [one for record in stages.values() for one in record["sources"].values()]
    removed = sum(sum(one["removed"].values()) for one in treated)
    held_out = f"{totals['held_out_tokens']:,} held out"
    unprepared = () if stages else ("no preparation: texts as they came",)
    size = f"{numbers.count(totals['input_bytes'])} bytes of input"
    kind = str(tokenizer["settings"].get("_target_", "")).rpartition(".")[2]
    return (
        Card("tokens to train on", numbers.count(totals["train_tokens"]), (held_out,)),
        Card("documents", numbers.count(totals["documents"]), ()),
        Card("removed", numbers.count(removed), unprepared),
        Card("sources", str(len(tree["sources"])), (size,)),
        Card("vocabulary", f"{tokenizer['vocab_size']:,}", (kind,)),
    )


def _tokens_figure(sources: Tree) -> PlotlyFigure:
    """Draw what there is of each source, beside what a run draws of it."""
    height = _FRAME_PIXELS + 2 * _ROW_PIXELS * len(sources)
    figure = empty_figure("share of the tokens", "", height=height)
    total = max(sum(source["train_tokens"] for source in sources.values()), 1)
    there = [source["train_tokens"] / total for source in sources.values()]
    drawn = [source["mixture"].get("promised_share", 0.0) for source in sources.values()]
    for place, (name, values) in enumerate((("prepared", there), ("drawn by a run", drawn))):
        marker = {"color": colour(place)}
        figure.add_bar(orientation="h", name=name, y=list(sources), x=values, marker=marker)
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_xaxes(tickformat=".1%")
    return figure


def _sources(sources: Tree) -> Grid:
    columns = ("source", "tokens", "held out", "documents", "language", "licence", "origin")
    rows = []
    for name, source in sources.items():
        counts = (
            f"{source[key]:,}" for key in ("train_tokens", "held_out_tokens", "documents")
        )
        found = ", ".join(
            f"{lang} {count:,}" for lang, count in _ranked(source["languages"])[:3]
        )
        language = " / ".join(filter(None, (source["language"], found)))  # claimed / found
        said = (language, source["licence"], source["origin"])
        rows.append((name, *counts, *(text or numbers.ABSENT for text in said)))
    return Grid(columns=columns, rows=rows, kind="figures")


def _ranked(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def _stages(stages: Tree) -> Grid:
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
    """Lay out a row a source; no rows where no run has written its results.

    Of several runs, what each drew: a column for those that drew the same.
    """
    drawn: list[Tree] = [(entry.run.results or {}).get("mixture", {}) for entry in entries]
    names = list(dict.fromkeys(name for one in drawn for name in one))

    def column(one: Tree, key: str, form: str) -> tuple[str, ...]:
        return tuple(numbers.written(one.get(name, {}).get(key), form) for name in names)

    if len(entries) == 1:
        columns = {head: column(drawn[0], *how) for head, how in _DRAWN.items()}
    else:
        holders: dict[tuple[str, ...], list[str]] = {}
        for entry, one in zip(entries, drawn, strict=True):
            holders.setdefault(column(one, *_DRAWN["drawn"]), []).append(entry.label)
        columns = {together(labels, entries): cells for cells, labels in holders.items()}
    rows = list(zip(names, *columns.values(), strict=True))
    return Grid(columns=("source", *columns), rows=rows, kind="figures", fold="sources")


def data_grid(sections: Sequence[Mapping[str, Any]]) -> Grid:
    """Lay out a row a prepared folder: who read it, and the figures of its card."""
    heads = dict.fromkeys(card.title for section in sections for card in section["cards"])
    rows = []
    for section in sections:
        figures = {card.title: card.value for card in section["cards"]}
        cells = (figures.get(head, numbers.ABSENT) for head in heads)
        rows.append((section["folder"], section["runs"], section["key"][:12], *cells))
    columns = ("prepared in", "runs", "key", *heads)
    return Grid(columns=columns, rows=rows, text_columns=3, kind="figures")


def data_section(entries: Sequence[ReportEntry]) -> ReportSection:
    """Give the figures of a run's data, or compare those of several runs."""
    found = data_sections(entries)
    if len(entries) > 1 or not found:
        return ReportSection("Data", (data_grid(found),))
    [data] = found
    prepared = f"Prepared in `{data['folder']}`, key `{data['key'][:12]}`. "
    if not data["cards"]:
        return ReportSection("Data", (f"{prepared}Its card is not there any more.",))
    card = "Samples, stages and every input's hash are in `card.html` there."
    figures = " · ".join(f"{card.value} {card.title}" for card in data["cards"])
    title = f"{len(data['sources'].rows)} sources: tokens, language, licence"
    return ReportSection("Data", (figures, Fold(title, [data["sources"]])), f"{prepared}{card}")


def data_sections(entries: Sequence[ReportEntry]) -> list[dict[str, Any]]:
    """Summarize each prepared folder once, with the figures of its card where there is one."""
    holders: dict[str, list[str]] = {}
    sections: dict[str, dict[str, Any]] = {}
    for entry in entries:
        file = entry.run.folder / "data.json"
        if file.exists():
            said = read_record(file, DataRecord)
            holders.setdefault(said.key, []).append(entry.label)
            if said.key in sections:
                continue
            card = _card(file, said)
            sections[said.key] = {
                "folder": Path(said.folder).name,  # not its whole path, which names people
                "key": said.key,
                "cards": _key_figures(card) if card else (),
                "sources": _sources(card["sources"]) if card else Grid(),
            }
    return [
        section | {"runs": together(holders[key], entries)} for key, section in sections.items()
    ]


def _card(file: Path, said: DataRecord) -> Tree | None:
    """Look where this user's own run says; where another's does, below the working folder."""
    folder = Path(said.folder)
    if not is_own(file) and not folder.resolve().is_relative_to(Path.cwd().resolve()):
        return None
    try:
        card = read_checked(folder / "card.json", DataCard)
    except RecipeError:  # gone, or half of one: the report stands without it
        return None
    # A folder can have been prepared again since, under the same name.
    return card if card["key"] == said.key else None
