"""Self-contained HTML pages: setting one, and writing it whole or not at all.

Nothing in a file is fetched: scripts and styles are inlined, and the page's security policy
forbids it. Without plotly, which draws, a page beside a result is left out, and that is said.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.data.files import replace_atomically
from components.errors import RecipeError

if TYPE_CHECKING:
    import plotly.graph_objects as go

Say = Callable[[str], None]
_HERE = Path(__file__).parent
# A chart can be saved as an image; a double click undoes a zoom.
_PLOTLY_CONFIG = {"displaylogo": False, "modeBarButtons": [["toImage"]]}
_LACKS = "plotly, which draws it, is not installed"


def check_plotly(path: str) -> None:
    """Refuse a page that was asked for.

    Raises:
        RecipeError: plotly is not installed.
    """
    if find_spec("plotly") is None:
        remedy = "pip install plotly, or ask where it is: what a page shows is data in a folder"
        raise RecipeError(path, f"no page: {_LACKS}", remedy)


def leave_report(runs: Sequence[Path], destination: Path, say: Say) -> Path | None:
    """Write the report of runs, if that can be done here."""
    if find_spec("plotly") is None:
        say(f"the report is left out: {_LACKS}")
        return None
    from components.report.page import write_report

    return write_report(runs, destination)


def leave_card(card: Mapping[str, Any], destination: Path, say: Say) -> Path | None:
    """Write the card of prepared data, if that can be done here."""
    if find_spec("plotly") is None:
        say(f"the card's page is left out: {_LACKS}")
        return None
    from components.report.data_card import write_card

    return write_card(card, destination)


def set_page(template: str, parts: Mapping[str, Any]) -> str:
    """Fill a template beside this file; all text is escaped, whatever it says."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    inlined = {"style": (_HERE / "page.css").read_text("utf-8"), "plotly": get_plotlyjs()}
    return environment.get_template(template).render({**parts, **inlined})


def embedded(name: str, figure: "go.Figure | None") -> str | None:
    """Write a figure as an element of the page; none stays none."""
    from plotly.io import to_html

    if figure is None:
        return None
    options = {"config": _PLOTLY_CONFIG, "include_plotlyjs": False, "full_html": False}
    return str(to_html(figure, div_id=f"chart-{name}", **options))


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
        remedy = "make room, or name another place: file=..."
        raise RecipeError(str(destination), problem, remedy) from None
    return destination
