"""Write the pages of runs and of prepared data, if plotly is installed to draw them."""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from components.report.data_card import data_card
from components.report.document import write_document
from components.report.html import NO_PLOTLY, shared_script
from components.report.page import write_report

Say = Callable[[str], None]


def write_report_if_possible(runs: Sequence[Path], destination: Path, say: Say) -> Path | None:
    """Write the report of runs. Without plotly, log that no report is written."""
    if find_spec("plotly") is None:
        say(f"no report written: {NO_PLOTLY}")
        return None
    return write_report(runs, destination, script=shared_script(destination.parent))


def write_card_if_possible(card: Mapping[str, Any], file: Path, say: Say) -> Path | None:
    """Write the page of a data card. Without plotly, log that no page is written."""
    if find_spec("plotly") is None:
        say(f"no data card page written: {NO_PLOTLY}")
        return None
    return write_document(data_card(card), file)
