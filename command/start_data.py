"""Check the data of a run that starts from another: same tokenizer, same samples so far."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from command.recipe.path_checks import untrusted_data
from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.data.manifest import Manifest
from components.errors import RecipeError
from components.run.folder import RunFolder, existing_run_folder
from components.sharing.prepared import describe_prepared
from components.train.sample_order import make_order


def check_start_data(recipe: Recipe, data: Mapping[str, Any]) -> None:
    """Compare the prepared data of a run, ``data.json``, with its parent's data.

    Nothing is compared if the parent's data no longer exist.

    Raises:
        RecipeError: the tokenizers differ; or, if the run continues its parent's optimizer
            state, the parent read other texts or other samples of a source.
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
        problem = "differs from the parent's tokenizer: it was trained on other text"
        remedy = f"set data.tokenizer_folder={there}"
        raise RecipeError("tokenizer", problem, remedy)
    if not recipe.start.goes_on:
        return
    for name in parent.data.source_names:
        if name in new.sources and old.sources.get(name) != new.sources[name]:
            problem = "the text differs from the text that the parent read"
            raise RecipeError(
                f"data.sources.{name}", problem, "use the same text, or another source"
            )
    samples = recipe.token_clock.consumed_after(recipe.first_step)
    theirs, ours = _drawn(parent, there, samples), _drawn(recipe, here, samples)
    for name in theirs | ours:
        if (drawn := theirs.get(name, 0)) != (would := ours.get(name, 0)):
            # With most_epochs a mixture depends on the whole budget, even in its past part.
            problem = (
                f"the parent drew {drawn:,} samples of {name}; this budget draws {would:,}"
            )
            remedy = "raise most_epochs of the exhausted sources, or keep the budget"
            raise RecipeError("budget.total_tokens", problem, remedy)


def _drawn(recipe: Recipe, folder: Path, samples: int) -> dict[str, int]:
    """Count the samples of each source among the first ``samples``."""
    order = make_order(recipe, Manifest.from_folder(folder), folder)
    return {name: order.count_samples(name, samples) for name in recipe.data.source_names}


def _prepared(run: RunFolder, parent: Recipe) -> Path | None:
    """Return the parent's prepared data, or None if they are missing or may not be read."""
    if not (run.path / "data.json").exists() or untrusted_data(run, parent, {}) is not None:
        return None
    place = Path(run.data_record.folder)
    return place if place.is_dir() else None
