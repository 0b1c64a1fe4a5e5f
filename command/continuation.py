"""Continue a run, with changes outside the mathematics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from command.arguments import Arguments
from command.composition.conf_groups import compose_group
from command.prepared_data import prepare_run_data
from command.recipe.path_checks import check_run_places
from command.words import is_own, keys_of
from components.checkpoint.choice import newest_whole
from components.checkpoint.metadata import newest_checkpoint, tokens_of
from components.checkpoint.start import ASIDE, find_earlier, find_start, put_start
from components.config.recipe import Recipe
from components.config.resolve import check_movable, update_recipe
from components.config.user_overrides import compare_values, iterate_leaves
from components.errors import RecipeError
from components.run.disk import as_recipe_error
from components.run.folder import RunFolder, open_run_folder, replace_recipe
from components.run.provenance import write_provenance
from components.terminal import log_line


def check_changes(arguments: Arguments) -> None:
    """Check the words, and raise a RecipeError for a key that ``resume=`` does not accept."""
    keys = [key for key in keys_of(arguments.words) if not is_own(key)]
    check_movable(key for key in keys if key != "action")


def reopen_run(path: Path, arguments: Arguments) -> tuple[RunFolder, Recipe, Recipe]:
    """Open the run of ``resume=``; return its recipe before and after the user's values.

    With ``at_tokens`` a finished run can continue, too.
    """
    check_changes(arguments)
    if arguments.fresh_optimizer and arguments.at_tokens is None:
        remedy = "write at_tokens=N, as in the name of the checkpoint's folder"
        raise RecipeError("at_tokens", "fresh_optimizer requires a checkpoint", remedy)
    folder, before = open_run_folder(path, finished=arguments.at_tokens is not None)
    check_run_places(folder, before, arguments)
    chosen = {group: compose_group(group, name) for group, name in arguments.choices.items()}
    values = chosen | arguments.values
    return folder, before, update_recipe(before, values) if values else before


def renew_data(folder: RunFolder, recipe: Recipe, arguments: Arguments) -> None:
    """Prepare the data of a continued run, and its start if it has no checkpoint."""
    data = prepare_run_data(recipe, arguments)
    if not (folder.path / "data.json").exists():  # interrupted before its first step
        write_data_records(folder, data, arguments)
    if newest_checkpoint(folder.checkpoints) is None:
        put_start(folder, find_start(recipe))
    before = folder.data_record
    if data["key"] != before.key:
        remedy = f"restore {Path(before.folder).name}, or start a new run"
        raise RecipeError("data", "the text files have changed since this run started", remedy)
    if data["folder"] != before.folder:  # the same data in another folder
        with as_recipe_error(folder.path):
            folder.write_json("data.json", data)


def continue_run(
    folder: RunFolder, before: Recipe, recipe: Recipe, arguments: Arguments, *, reads: bool
) -> None:
    """Continue the run with ``recipe``, from its newest checkpoint or the one at ``at_tokens``.

    A changed recipe takes effect at the newest whole checkpoint. Without ``reads``, as on a
    login node, the checkpoint's bytes are not verified, and the newest complete checkpoint
    counts.
    """
    if (tokens := arguments.at_tokens) is not None:
        earlier = find_earlier(folder, tokens, fresh_optimizer=arguments.fresh_optimizer)
        if later := put_start(folder, earlier):
            log_line(f"moved to {folder.checkpoints / ASIDE}: {', '.join(later)}")
    if recipe != before:
        trees = (
            dict(iterate_leaves(side.model_dump(mode="json"))) for side in (before, recipe)
        )
        log_line(f"changed: {change_text(compare_values(*trees))}")
        newest = newest_checkpoint(folder.checkpoints)
        if reads and (chosen := newest_whole(folder.checkpoints)) is not None:
            newest = chosen.checkpoint
        step = recipe.token_clock.steps_of(tokens_of(newest)) if newest else 0
        with as_recipe_error(folder.path):
            replace_recipe(folder, recipe, step=step)


def write_data_records(folder: RunFolder, data: dict[str, Any], arguments: Arguments) -> None:
    """Write the data record and the provenance of the run."""
    with as_recipe_error(folder.path):
        write_provenance(folder, arguments.words)
        folder.write_json("data.json", data)  # last: this file marks a run that has started


def change_text(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """List changed keys on one line, each with its old and new value."""
    return ", ".join(
        f"{key}: {old!r:.60} -> {new!r:.60}" for key, (old, new) in changed.items()
    )
