"""Run a study: its listed points, or a search."""

from collections.abc import Sequence

from command.outcome import Status
from command.study.listed import try_points
from command.study.request import ask
from command.study.schema import ListedStudy
from components.errors import RecipeError


def run_study(words: Sequence[str]) -> Status:
    """Try the points of a study and print what was found.

    Raises:
        RecipeError: the study, or a word beside it, is wrong.
    """
    asked = ask(words)
    if isinstance(asked.study, ListedStudy):
        return try_points(asked, asked.study)
    if asked.action == "report":
        remedy = "action=report runs=[...] compares its runs"
        raise RecipeError("action", f"{asked.study.name} searches: it has no figure", remedy)
    from command.study.search import search_points  # slow: optuna

    return search_points(asked, asked.study)
