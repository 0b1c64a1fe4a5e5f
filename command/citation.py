"""The works that a recipe repeats, as BibTeX: one file each, named by its ``works``."""

from pathlib import Path

from command.arguments import ROOT
from components.errors import RecipeError
from components.spec.recipe import Recipe
from components.spec.targets import nearest

WORKS = ROOT / "works"


def citations(recipe: Recipe, folder: Path = WORKS) -> dict[str, str]:
    """Map each work that the recipe names to its BibTeX entry.

    Raises:
        RecipeError: the recipe names none, or one that there is no file of.
    """
    known = sorted(file.stem for file in folder.glob("*.bib"))
    if not recipe.works:
        problem = f"the recipe {recipe.name!r} names no work to cite"
        raise RecipeError(
            "works", problem, f"name some of {', '.join(known)}: works=[{known[0]}]"
        )
    for name in recipe.works:
        if name not in known:
            raise RecipeError("works", f"there is no work {name!r}", nearest(name, known))
    return {name: (folder / f"{name}.bib").read_text("utf-8") for name in recipe.works}
