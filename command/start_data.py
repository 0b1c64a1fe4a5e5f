"""The data of a run that comes from another: the same tokenizer, and the same past."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from command.recipe.path_checks import strange_data
from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.data.manifest import Manifest
from components.errors import RecipeError
from components.run.folder import RunFolder, existing_run_folder
from components.sharing.prepared import describe_prepared
from components.train.sample_order import make_order


def check_start_data(recipe: Recipe, data: Mapping[str, Any]) -> None:
    """Compare the prepared data of a run, ``data.json``, with those of its parent.

    Where the parent's are not here any more, nothing is compared.

    Raises:
        RecipeError: another tokenizer wrote them; or the run goes on, and what its parent read
            were other texts, or others of them.
    """
    if recipe.start is None or recipe.start.run is None:
        return
    folder = existing_run_folder(Path(recipe.start.run).expanduser(), "from.run")
    parent, here = read_recipe(folder.recipe), Path(data["folder"])
    there = _prepared(folder, parent)
    if there is None:
        return
    old, new = describe_prepared(there), describe_prepared(here)
    if old.tokenizer != new.tokenizer:
        problem = "was trained on other text than the parent's, and gives other ids"
        remedy = f"set data.tokenizer_folder={there}"
        raise RecipeError("tokenizer", problem, remedy)
    if not recipe.start.goes_on:
        return
    for name in parent.data.names:
        if name in new.sources and old.sources.get(name) != new.sources[name]:
            problem = "its texts are not those that the parent has read"
            raise RecipeError(
                f"data.sources.{name}", problem, "name the same, or another source"
            )
    samples = recipe.clock.consumed_after(recipe.first_step)
    theirs, ours = _drawn(parent, there, samples), _drawn(recipe, here, samples)
    for name in theirs | ours:
        if (drawn := theirs.get(name, 0)) != (would := ours.get(name, 0)):
            # With most_epochs a mixture follows from the whole budget, its past too.
            problem = (
                f"of {name} the parent has drawn {drawn:,} samples, by this it would {would:,}"
            )
            remedy = "raise most_epochs where this budget exceeds it, or keep the budget"
            raise RecipeError("budget.total_tokens", problem, remedy)


def _drawn(recipe: Recipe, folder: Path, samples: int) -> dict[str, int]:
    """Count the samples of each source among the first ``samples``."""
    order = make_order(recipe, Manifest.read(folder), folder)
    return {name: order.count(name, samples) for name in recipe.data.names}


def _prepared(run: RunFolder, parent: Recipe) -> Path | None:
    """Find the parent's prepared data, unless they are gone or nobody's to look at."""
    if not (run.path / "data.json").exists() or strange_data(run, parent, {}) is not None:
        return None
    place = Path(run.data.folder)
    return place if place.is_dir() else None
