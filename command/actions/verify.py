"""Verify a lock against the current state or against a run, and print the differences."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from command.arguments import Arguments, read_point
from command.card.reading import verify_card
from command.comparison import print_differences, side_of_now, side_of_run
from command.composition.compose import compose_recipe
from command.files.trusted_paths import is_trusted
from command.outcome import ActionResult, Status
from command.recipe.lock_file import ReceivedLock, check_choices, read_given
from command.recipe.path_checks import places_outside
from components.config.fingerprint import fingerprint_of
from components.config.key_groups import KeyGroup
from components.config.recipe import Recipe
from components.config.user_overrides import UserOverrides
from components.errors import RecipeError
from components.run.provenance import COMPUTING, files_changed
from components.sharing.differences import DifferenceGroups, compare_sides, list_notes, side_of
from components.sharing.lock import Lock


def run(arguments: Arguments) -> ActionResult:
    """Print the differences by group. The status is 1 if any changes the mathematics."""
    if (file := arguments.file) is None:
        raise RecipeError("file", "a lock is required", "write file=NAME.lock.yaml")
    if file.suffix == ".json":
        verify_card(file, arguments.output)
        return ActionResult(Status.DONE)
    received = read_given(file, "file")
    if not isinstance(received, ReceivedLock):
        remedy = "write a lock with action=pack file=NAME.lock.yaml"
        raise RecipeError("file", f"{file} is a recipe, not a lock", remedy)
    lock = received.lock
    locked = side_of(lock, file.name)
    unseen: list[str] = []
    if arguments.run is not None:
        now = side_of_run(arguments.run)
    else:
        recipe = _recompose(lock, file, arguments.values)
        # The author of a received lock must not choose which paths are read.
        places = places_outside(recipe.model_dump(mode="json"), UserOverrides(arguments.values))
        if (folder := places.get("data.folder")) and not is_trusted(file):
            unseen.append(
                f"prepared data not read: data.folder={folder} leads out of the working "
                "directory; if you trust it, set data.folder"
            )
        now = side_of_now(recipe, reads_data=not unseen)
    differences = compare_sides(locked, now)
    _judge_file(received, differences)
    remarks = [*list_notes(locked, now, differences), *unseen]
    commit = lock.software.code.commit
    for folder_name in COMPUTING:  # git lists the changed files
        differs = f"code.{folder_name}" in differences[KeyGroup.MATHEMATICS]
        if differs and (files := files_changed(commit, folder_name)):
            remarks.append(
                f"code.{folder_name}: {', '.join(files)} (since commit {commit[:12]})"
            )
    print_differences(locked, now, differences, remarks, output=arguments.output)
    return ActionResult(
        Status.DOES_NOT_HOLD if differences[KeyGroup.MATHEMATICS] else Status.DONE
    )


def _recompose(lock: Lock, file: Path, values: Mapping[str, Any]) -> Recipe:
    """Compose the lock's recipe again from the current files.

    The lock's choices and values are untrusted data. ``values`` are keys that the user sets.
    """
    request = lock.model_dump(mode="json")["requested"]
    name = str(file) if lock.is_bundle else request["recipe"]
    point = replace(
        read_point([f"recipe={name}"]),
        choices=check_choices(request["choices"]),
        file_values=request["values"],
        values=dict(values),
    )
    try:
        return compose_recipe(point, anywhere=True)
    except RecipeError as error:
        problem = f"the locked recipe is no longer valid: {error.path}: {error.problem}"
        raise RecipeError(file.name, problem, error.remedy) from None


def _judge_file(given: ReceivedLock, differences: DifferenceGroups) -> None:
    """Add a mathematics difference if the lock was edited, and each changed fingerprint."""
    lock, name = given.lock, given.sent.file.name
    tree = lock.model_dump(mode="json")["resolved"]
    if not given.sealed:
        values = ("as written", "edited: different sha256")
        differences[KeyGroup.MATHEMATICS][name] = values
    for group in KeyGroup:
        written, computed = lock.fingerprint.of_group(group), fingerprint_of(tree, group)
        if computed != written:
            key = f"{name}: fingerprint of the {group.value}"
            differences[group][key] = (written, computed)
