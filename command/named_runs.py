"""The runs that a command names, one by one or by the folder of a sweep."""

from pathlib import Path

from command.arguments import Arguments
from components.errors import RecipeError
from components.train.run_folder import existing_run_folder


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
        alone = (folder / "recipe.json").is_file() or not inside
        named_here = [folder] if alone else inside
        found += [existing_run_folder(one).path for one in named_here]
    return found
