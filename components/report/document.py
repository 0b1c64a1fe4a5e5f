"""Setting one self-contained page, and writing it whole or not at all.

Nothing in the file is fetched: scripts and styles are inlined, and the page's own security
policy forbids the browser to load anything.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from plotly.io import to_html
from plotly.offline import get_plotlyjs

from components.data.files import replace_atomically
from components.errors import RecipeError

_HERE = Path(__file__).parent
# A chart can be saved as an image; a double click undoes a zoom.
_PLOTLY_CONFIG = {"displaylogo": False, "modeBarButtons": [["toImage"]]}


def set_page(template: str, parts: Mapping[str, Any]) -> str:
    """Fill a template beside this file; all text is escaped, whatever it says."""
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render({
        **parts,
        "style": (_HERE / "page.css").read_text(encoding="utf-8"),
        "plotly": get_plotlyjs(),
    })


def embedded(name: str, figure: go.Figure | None) -> str | None:
    """Write a figure as an element of the page; none stays none."""
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


def check_destination(destination: Path) -> None:
    """Refuse a folder before anything is drawn.

    Raises:
        RecipeError: the destination is a folder.
    """
    if destination.is_dir():
        raise RecipeError(str(destination), "is a folder", "name a file, such as report.html")


def write_page(page: str, destination: Path) -> Path:
    """Replace the file at once, so that an interrupted write leaves the old one.

    Raises:
        RecipeError: it cannot be written there.
    """
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(destination) as stream:
            # JSON can name half a surrogate pair, which no file can hold.
            stream.write(page.encode("utf-8", errors="replace"))
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        raise RecipeError(
            str(destination), problem, "make room, or name another place: file=..."
        ) from None
    return destination
