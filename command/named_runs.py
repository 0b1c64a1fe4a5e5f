"""The runs that a command names, one by one or by the folder of a sweep."""

from pathlib import Path

from command.arguments import Arguments
from components.errors import RecipeError


def named_runs(arguments: Arguments) -> list[Path]:
    """List the run folders that are named; a folder of run folders stands for all of them.

    Raises:
        RecipeError: none is named, or there is none.
    """
    named = [*arguments.runs, *filter(None, [arguments.folders.get("run")])]
    if not named:
        raise RecipeError("run", "no run is named", "write run=FOLDER, or runs=[FOLDER,...]")
    found = []
    for folder in named:
        inside = sorted(file.parent for file in folder.glob("*/recipe.json"))
        found += [folder] if (folder / "recipe.json").exists() or not inside else inside
    return found
