"""Continue a run, with changes outside the mathematics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from command.arguments import Arguments
from command.composition.conf_groups import compose_group
from command.prepared_data import prepare_data
from command.recipe.path_checks import check_run_places
from command.words import is_own, keys_of
from components.checkpoint.choice import newest_whole
from components.checkpoint.metadata import newest_checkpoint, tokens_of
from components.checkpoint.start import ASIDE, find_earlier, find_start, put_start
from components.config.recipe import Recipe
from components.config.resolve import check_movable, relayout
from components.config.user_overrides import differences, leaves
from components.errors import RecipeError
from components.run.disk import explained
from components.run.folder import RunFolder, open_run_folder, replace_recipe
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


def continue_run(
    folder: RunFolder, before: Recipe, recipe: Recipe, arguments: Arguments, *, reads: bool
) -> None:
    """Let the run go on by ``recipe``, from its newest checkpoint or that of ``at_tokens``.

    If the recipe changes, its step is that of the newest whole checkpoint. Unless it ``reads``
    all bytes of that one, as a login node should not, the newest complete one counts.

    Raises:
        RecipeError: there is no such checkpoint, it is not whole, or the disk is full.
    """
    if (tokens := arguments.at_tokens) is not None:
        earlier = find_earlier(folder, tokens, fresh_optimizer=arguments.fresh_optimizer)
        if later := put_start(folder, earlier):
            say(f"set aside in {folder.checkpoints / ASIDE}: {', '.join(later)}")
    if recipe != before:
        trees = (dict(leaves(one.model_dump(mode="json"))) for one in (before, recipe))
        say(f"changed: {change_text(differences(*trees))}")
        newest = newest_checkpoint(folder.checkpoints)
        if reads and (chosen := newest_whole(folder.checkpoints)) is not None:
            newest = chosen.checkpoint
        step = recipe.clock.steps_of(tokens_of(newest)) if newest else 0
        with explained(folder.path):
            replace_recipe(folder, recipe, step=step)


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
