"""Pages are drawn by plotly, which a machine that only trains may lack; imports it when asked.

Who leaves a page beside a result goes on without, and says so; whoever was asked for one
refuses.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from components.errors import RecipeError

Say = Callable[[str], None]
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
    if _is_left_out("the report", say):
        return None
    from components.report.page import write_report

    return write_report(runs, destination)


def leave_card(card: Mapping[str, Any], destination: Path, say: Say) -> Path | None:
    """Write the card of prepared data, if that can be done here."""
    if _is_left_out("the card's page", say):
        return None
    from components.report.data_page import write_card

    return write_card(card, destination)


def _is_left_out(page: str, say: Say) -> bool:
    lacks = find_spec("plotly") is None
    if lacks:
        say(f"{page} is left out: {_LACKS}")
    return lacks
