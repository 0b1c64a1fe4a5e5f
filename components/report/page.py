"""One self-contained HTML file from one or more run folders.

Nothing in the file is fetched: scripts and styles are inlined, and the page's own security
policy forbids the browser to load anything.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from plotly.io import to_html
from plotly.offline import get_plotlyjs

from components.errors import RecipeError
from components.report import figures, numbers, provenance, tables
from components.report.cards import key_figures
from components.report.outcome import Entry, load_entries
from components.report.recipe_text import recipe_lines

_HERE = Path(__file__).parent
# A chart can be saved as an image; a double click undoes a zoom.
_PLOTLY_CONFIG = {"displaylogo": False, "modeBarButtons": [["toImage"]]}


def write_report(runs: Sequence[Path], destination: Path) -> Path:
    """Write the report whole or not at all, and return its path.

    Raises:
        RecipeError: no run folder is given, one of them is no run, or the destination is a
            folder.
    """
    if destination.is_dir():
        raise RecipeError(str(destination), "is a folder", "name a file, such as report.html")
    page = render(load_entries(runs))
    destination.parent.mkdir(parents=True, exist_ok=True)
    draft = destination.with_name(f".{destination.name}.{os.getpid()}")
    try:
        # JSON can name half a surrogate pair, which no file can hold.
        draft.write_text(page, encoding="utf-8", errors="replace")
        draft.replace(destination)
    finally:
        draft.unlink(missing_ok=True)
    return destination


def render(entries: Sequence[Entry]) -> str:
    """Set the page; all text is escaped, whatever a recipe or a source is called."""
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        entries=entries,
        single=entries[0] if len(entries) == 1 else None,
        names=list(dict.fromkeys(entry.run.recipe["name"] for entry in entries)),
        reasons=list(dict.fromkeys(entry.run.recipe["why"] for entry in entries)),
        miniatures=[entry.label for entry in entries if provenance.is_miniature(entry)],
        cards=key_figures(entries[0]),
        colours=[figures.colour(index) for index in range(len(entries))],
        charts=_charts(entries),
        tables=_tables(entries),
        recipes=_recipes(entries),
        count=numbers.count,
        style=(_HERE / "page.css").read_text(encoding="utf-8"),
        plotly=get_plotlyjs(),
    )


def _charts(entries: Sequence[Entry]) -> dict[str, str | None]:
    drawn: dict[str, Callable[[Sequence[Entry]], Any]] = {
        "loss": figures.loss_figure,
        "sources": figures.sources_figure,
        "rate": figures.rate_figure,
        "gradient": figures.gradient_figure,
        "throughput": figures.throughput_figure,
    }
    return {name: _embedded(name, draw(entries)) for name, draw in drawn.items()}


def _embedded(name: str, figure: Any) -> str | None:
    if figure is None:
        return None
    return str(
        to_html(
            figure,
            config=_PLOTLY_CONFIG,
            include_plotlyjs=False,
            full_html=False,
            div_id=f"chart-{name}",
        )
    )


def _tables(entries: Sequence[Entry]) -> dict[str, tables.Grid]:
    return {
        "summary": tables.summary_grid(entries),
        "differences": tables.differences_grid(entries),
        "published": provenance.published_grid(entries),
        "assumed": provenance.assumed_grid(entries),
        "flops": tables.flops_grid(entries),
        "environment": tables.environment_grid(entries),
        "incidents": tables.incidents_grid(entries),
    }


def _recipes(entries: Sequence[Entry]) -> list[tuple[str, Any]]:
    differing = frozenset(tables.differing_keys(entries))
    return [(entry.label, recipe_lines(entry.run.recipe, differing)) for entry in entries]
