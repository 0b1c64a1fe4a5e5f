"""HTML pages: rendering of documents and figures, and atomic writes.

A page is one file with inlined scripts and styles. Its security policy forbids fetching, and
scripts without a listed hash. Exceptions are the run pages of a sweep or a study, which share
plotly's script (megabytes) in their common folder; the first run writes its page before the
script.
"""

import base64
import hashlib
import html
import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.data.files import parents_of, replace_atomically
from components.errors import RecipeError
from components.terminal import escape_invisible, hide_folders

if TYPE_CHECKING:
    import plotly.graph_objects as go

_HERE = Path(__file__).parent
# Charts can be saved as images. A double click resets the zoom.
_PLOTLY_CONFIG = {"displaylogo": False, "modeBarButtons": [["toImage"]], "responsive": True}
NO_PLOTLY = "plotly is not installed"
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_CODE = re.compile(r"`([^`]+)`")


def check_plotly(path: str) -> None:
    """Raise a RecipeError if plotly, which draws a requested page, is not installed."""
    if find_spec("plotly") is None:
        remedy = "run pip install plotly, or create the page on a machine with plotly"
        raise RecipeError(path, f"no page: {NO_PLOTLY}", remedy)


def share_script(folder: Path) -> None:
    """Write plotly's script into a folder of runs, for the pages in the run folders."""
    if find_spec("plotly") is not None and shared_script(folder / "run") is None:
        write_page(_read_library(), folder / _script_name())


def shared_script(run: Path) -> str | None:
    """Return the relative path of the shared script above a run, if it is plotly's own."""
    file, own = run.absolute().parent / _script_name(), _read_library().encode("utf-8")
    is_own = file.is_file() and file.stat().st_size == len(own) and file.read_bytes() == own
    return f"../{file.name}" if is_own else None


def _script_name() -> str:
    from plotly.offline import get_plotlyjs_version

    return f"plotly-{get_plotlyjs_version()}.min.js"


def render_document(document: object, script: str | None = None) -> str:
    """Return the document as HTML. Text is escaped; folders and hidden characters are removed.

    ``script`` is the path of plotly's script; without it, a page with charts contains it.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda text: (
            escape_invisible(hide_folders(text)) if type(text) is str else text
        ),
    )
    hashes: list[str] = []

    def allow_scripts(part: str) -> str:
        """Add the scripts of a part that this code wrote to the list of allowed scripts."""
        for text in _SCRIPT.findall(part):
            digest = hashlib.sha256(text.encode("utf-8", errors="replace")).digest()
            hashes.append(f"'sha256-{base64.b64encode(digest).decode('ascii')}'")
        return part

    environment.globals.update(
        allowed=allow_scripts,
        hashes=hashes,
        figure_html=figure_html,
        split_code=lambda text: _CODE.split(hide_folders(text)),
        kind_of=lambda block: type(block).__name__,
    )
    parts = {
        "document": document,
        "style": (_HERE / "page.css").read_text("utf-8"),
        "plotly": _read_library,
        "script": script,
    }
    return environment.get_template("document.html.j2").render(parts)


def _read_library() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def figure_html(name: str, figure: "go.Figure") -> str:
    """Return a figure as an HTML element, all text escaped: plotly interprets tags."""
    from plotly.io import to_html

    options = {"config": _PLOTLY_CONFIG, "include_plotlyjs": False, "full_html": False}
    tree = _plain(json.loads(str(figure.to_json())))
    return str(to_html(tree, div_id=f"chart-{name}", **options))


def _plain(part: Any) -> Any:
    """Escape all strings of a figure except its hover templates, whose tags this code wrote."""
    if isinstance(part, dict):
        return {k: v if k == "hovertemplate" else _plain(v) for k, v in part.items()}
    if isinstance(part, list):
        return [_plain(item) for item in part]
    return html.escape(escape_invisible(part), quote=False) if isinstance(part, str) else part


def check_destination(destination: Path) -> None:
    """Raise a RecipeError if the destination is a folder, before anything is drawn."""
    if destination.is_dir():
        raise RecipeError(str(destination), "is a folder", "use a file, such as report.html")


def write_page(page: str, destination: Path) -> Path:
    """Replace the file atomically, so that an interrupted write leaves the old file."""
    try:
        with parents_of(destination), replace_atomically(destination) as stream:
            # JSON can contain half a surrogate pair, which UTF-8 cannot encode.
            stream.write(page.encode("utf-8", errors="replace"))
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        remedy = "free disk space, or use another path"
        raise RecipeError(str(destination), problem, remedy) from None
    return destination
