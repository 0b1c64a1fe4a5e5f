"""Continue a run, with changes outside the mathematics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from command.arguments import Arguments
from command.composition.conf_groups import compose_group
from command.prepared_data import prepare_data
from command.recipe.path_checks import check_run_places
from command.words import is_own, keys_of
from components.checkpoint.metadata import newest_checkpoint
from components.checkpoint.start import ASIDE, FoundStart, find_earlier, find_start, put_start
from components.config.recipe import Recipe
from components.config.resolve import check_movable, relayout
from components.errors import RecipeError
from components.run.disk import explained
from components.run.folder import RunFolder, open_run_folder
from components.run.provenance import write_provenance
from components.terminal import say


def check_changes(arguments: Arguments) -> None:
    """Raise a RecipeError for a key that ``resume=`` does not accept."""
    keys = [key for key in keys_of(arguments.words) if not is_own(key)]
    check_movable(key for key in keys if key != "action")


def reopen(path: Path, arguments: Arguments) -> tuple[RunFolder, Recipe, Recipe]:
    """Open the run of ``resume=``; return its recipe without and with the user's values.

    With ``at_tokens`` a run that has finished goes on, too.

    Raises:
        RecipeError: the run has finished or is not the user's, or a value may not change.
    """
    check_changes(arguments)
    if arguments.fresh_optimizer and arguments.at_tokens is None:
        problem, remedy = "no checkpoint is named", "write at_tokens=N, as in its folder's name"
        raise RecipeError("at_tokens", problem, remedy)
    folder, before = open_run_folder(path, finished=arguments.at_tokens is not None)
    check_run_places(folder, before, arguments)
    chosen = {group: compose_group(group, name) for group, name in arguments.choices.items()}
    values = chosen | arguments.values
    return folder, before, relayout(before, values) if values else before


def renew_data(folder: RunFolder, recipe: Recipe, arguments: Arguments) -> None:
    """Prepare the data of a run that continues, and its beginning if it has no checkpoint.

    Raises:
        RecipeError: the texts have changed.
    """
    data = prepare_data(recipe, arguments.site)
    if not (folder.path / "data.json").exists():  # it was interrupted before it began
        describe(folder, data, arguments)
    if newest_checkpoint(folder.checkpoints) is None:
        put_start(folder, find_start(recipe))
    before = folder.data
    if data["key"] != before.key:
        remedy = f"put {Path(before.folder).name} back, or start a new run"
        raise RecipeError("data", "the texts have changed since this run began", remedy)
    if data["folder"] != before.folder:  # the same data, prepared elsewhere
        with explained(folder.path):
            folder.write_json("data.json", data)


def find_named(folder: RunFolder, arguments: Arguments) -> FoundStart | None:
    """Find the earlier checkpoint of ``at_tokens=N`` that a resumed run starts from, if any.

    Raises:
        RecipeError: there is no such checkpoint, or it is not whole.
    """
    if arguments.at_tokens is None:
        return None
    fresh = arguments.fresh_optimizer
    return find_earlier(folder, arguments.at_tokens, fresh_optimizer=fresh)


def rewind(folder: RunFolder, found: FoundStart | None) -> None:
    """Let the run go on from the checkpoint that was found, and set later ones aside."""
    if later := put_start(folder, found):
        say(f"set aside in {folder.checkpoints / ASIDE}: {', '.join(later)}")


def describe(folder: RunFolder, data: dict[str, Any], arguments: Arguments) -> None:
    """Write the data record and the provenance of the run."""
    with explained(folder.path):
        write_provenance(folder, arguments.words)
        folder.write_json("data.json", data)  # last: it marks a run that has begun


def change_text(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """List changed keys on one line, each with its old and new value."""
    return ", ".join(
        f"{key}: {old!r:.60} -> {new!r:.60}" for key, (old, new) in changed.items()
    )
