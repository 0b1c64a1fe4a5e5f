"""HTML pages: rendering documents and figures, and writing a page whole or not at all.

A page is one file: scripts and styles are inlined. Its security policy forbids it to fetch
anything, and to run a script whose hash it does not list. Only the pages that the runs of a
sweep or a study leave share plotly's script, which is megabytes, in their common folder; the
first run of a study writes its page before the script is there.
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
from components.terminal import hide_folders, printable

if TYPE_CHECKING:
    import plotly.graph_objects as go

_HERE = Path(__file__).parent
# A chart can be saved as an image; a double click undoes a zoom.
_PLOTLY_CONFIG = {"displaylogo": False, "modeBarButtons": [["toImage"]], "responsive": True}
NO_PLOTLY = "plotly, which draws it, is not installed"
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_SECTION = re.compile(r"<section([^>]*)>\s*<h2>(.*?)</h2>")
_FEWEST = 5  # sections below which a page needs no list
_CODE = re.compile(r"`([^`]+)`")


def check_plotly(path: str) -> None:
    """Refuse a page that was asked for.

    Raises:
        RecipeError: plotly is not installed.
    """
    if find_spec("plotly") is None:
        remedy = "pip install plotly, or ask where it is: what a page shows is data in a folder"
        raise RecipeError(path, f"no page: {NO_PLOTLY}", remedy)


def share_script(folder: Path) -> None:
    """Put plotly's script into a folder of runs, for the pages that these leave there.

    Raises:
        RecipeError: it cannot be written there.
    """
    if find_spec("plotly") is not None and shared_script(folder / "run") is None:
        from plotly.offline import get_plotlyjs

        write_page(get_plotlyjs(), folder / _script_name())


def shared_script(run: Path) -> str | None:
    """Name, from a run's folder, the script of the folder above, if that is plotly's own."""
    from plotly.offline import get_plotlyjs

    file, own = run.absolute().parent / _script_name(), get_plotlyjs().encode("utf-8")
    is_own = file.is_file() and file.stat().st_size == len(own) and file.read_bytes() == own
    return f"../{file.name}" if is_own else None


def _script_name() -> str:
    from plotly.offline import get_plotlyjs_version

    return f"plotly-{get_plotlyjs_version()}.min.js"


def render_document(document: object, script: str | None = None) -> str:
    """Set a document as HTML. Text is escaped; folders and hidden characters are removed.

    ``script`` says where the page finds plotly's; without it, a page with charts has its own.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda text: printable(hide_folders(text)) if type(text) is str else text,
    )
    hashes: list[str] = []

    def allowed(part: str) -> str:
        """List the scripts of a part that this code wrote as scripts that may run."""
        for text in _SCRIPT.findall(part):
            digest = hashlib.sha256(text.encode("utf-8", errors="replace")).digest()
            hashes.append(f"'sha256-{base64.b64encode(digest).decode('ascii')}'")
        return part

    environment.globals.update(
        allowed=allowed,
        hashes=hashes,
        figure_html=figure_html,
        split_code=lambda text: _CODE.split(hide_folders(text)),
        kind_of=lambda block: type(block).__name__,
    )
    parts = {
        "document": document,
        "style": (_HERE / "page.css").read_text("utf-8"),
        "plotly": _library,
        "script": script,
        "add_toc": add_toc,
    }
    return environment.get_template("document.html.j2").render(parts)


def _library() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def figure_html(name: str, figure: "go.Figure") -> str:
    """Write a figure as an element of the page.

    Plotly reads tags in the text of a figure: all of it is escaped here.
    """
    from plotly.io import to_html

    options = {"config": _PLOTLY_CONFIG, "include_plotlyjs": False, "full_html": False}
    tree = _plain(json.loads(str(figure.to_json())))
    return str(to_html(tree, div_id=f"chart-{name}", **options))


def _plain(part: Any) -> Any:
    """Escape all strings of a figure but its hover templates, whose tags are ours."""
    if isinstance(part, dict):
        return {k: v if k == "hovertemplate" else _plain(v) for k, v in part.items()}
    if isinstance(part, list):
        return [_plain(one) for one in part]
    return html.escape(printable(part), quote=False) if isinstance(part, str) else part


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
        with parents_of(destination), replace_atomically(destination) as stream:
            # JSON can name half a surrogate pair, which no file can hold.
            stream.write(page.encode("utf-8", errors="replace"))
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        remedy = "make room, or name another place"
        raise RecipeError(str(destination), problem, remedy) from None
    return destination


def add_toc(body: str) -> str:
    """Give every section with a heading an id, and list them below the header if they are many.

    The template's own tags are the only ones there are: all other text is escaped.
    """
    titles: dict[str, str] = {}

    def anchored(found: re.Match[str]) -> str:
        attributes, title = found.groups()
        name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"
        while name in titles:
            name += "-again"
        titles[name] = title
        return f'<section id="{name}"{attributes}>\n  <h2>{title}</h2>'

    text = _SECTION.sub(anchored, body)
    if len(titles) >= _FEWEST:
        links = (f'<li><a href="#{name}">{title}</a></li>' for name, title in titles.items())
        listed = f'<nav class="contents" aria-label="Contents"><ul>{"".join(links)}</ul></nav>'
        text = text.replace("</header>", f"</header>\n{listed}", 1)
    return text
