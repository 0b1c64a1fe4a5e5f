"""``python run.py -m study=NAME``: search, or try the points of a list."""

from collections.abc import Sequence

from command.outcome import Status
from command.study_asked import ask
from components.errors import RecipeError
from components.spec.study_listed import Listed


def run_study(words: Sequence[str]) -> Status:
    """Try the points of a study and print what was found.

    Raises:
        RecipeError: the study, or a word beside it, is wrong.
    """
    asked = ask(words)
    if isinstance(asked.study, Listed):
        from command.study_listed import try_points

        return try_points(asked, asked.study)
    if asked.action == "report":
        remedy = "action=report runs=[...] compares its runs"
        raise RecipeError("action", f"{asked.study.name} searches: it has no figure", remedy)
    from command.study_searched import search_points  # imports Optuna

    return search_points(asked, asked.study)
