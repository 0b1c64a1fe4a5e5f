"""Hold a lock against what is here now, or against a run; name what differs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from command.arguments import Arguments, read_point
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
from components.sharing.differences import Found, compare, notes, side_of
from components.sharing.lock import Lock


def run(arguments: Arguments) -> ActionResult:
    """Print the differences by group; status 1 if any changes the mathematics."""
    if (file := arguments.file) is None:
        raise RecipeError("file", "no lock is named", "write file=NAME.lock.yaml")
    given = read_given(file, "file")
    if not isinstance(given, ReceivedLock):
        remedy = "action=pack file=NAME.lock.yaml writes one"
        raise RecipeError("file", f"{file} is a recipe, no lock", remedy)
    lock = given.lock
    locked = side_of(lock, file.name)
    unseen: list[str] = []
    if arguments.run is not None:
        now = side_of_run(arguments.run)
    else:
        recipe = _recompose(lock, file, arguments.values)
        # A received lock's author does not choose what is looked at.
        places = places_outside(recipe.model_dump(mode="json"), UserOverrides(arguments.values))
        if (folder := places.get("data.folder")) and not is_trusted(file):
            unseen.append(
                f"prepared data are not looked for: data.folder={folder} leads out of the "
                "working folder; if you trust it, name it yourself"
            )
        now = side_of_now(recipe, "now", reads_data=not unseen)
    found = compare(locked, now)
    _judge_file(given, found)
    said, commit = [*notes(locked, now, found), *unseen], lock.software.code.commit
    for room in COMPUTING:  # git names the files behind a room that differs
        differs = f"code.{room}" in found[KeyGroup.MATHEMATICS]
        if differs and (files := files_changed(commit, room)):
            said.append(f"code.{room}: {', '.join(files)} (since commit {commit[:12]})")
    print_differences(locked, now, found, said, output=arguments.output)
    return ActionResult(Status.DOES_NOT_HOLD if found[KeyGroup.MATHEMATICS] else Status.DONE)


def _recompose(lock: Lock, file: Path, values: Mapping[str, Any]) -> Recipe:
    """Compose again what the lock was made of, with the files that are here now.

    Its choices and values are data; ``values`` are those that the user names beside it.
    """
    asked = lock.model_dump(mode="json")["asked"]
    name = str(file) if lock.is_bundle else asked["recipe"]
    point = replace(
        read_point([f"recipe={name}"]),
        choices=check_choices(asked["choices"], "asked.choices"),
        file_values=asked["values"],
        values=dict(values),
    )
    try:
        return compose_recipe(point, anywhere=True)
    except RecipeError as error:
        problem = f"what it froze is no recipe any more: {error.path}: {error.problem}"
        raise RecipeError(file.name, problem, error.remedy) from None


def _judge_file(given: ReceivedLock, found: Found) -> None:
    """A lock that was edited is no witness: say so, and where the recipe in it shows it."""
    lock, name = given.lock, given.sent.file.name
    tree = lock.model_dump(mode="json")["settled"]
    if not given.sealed:
        values = ("as it was written", "edited: its sha256 is another")
        found[KeyGroup.MATHEMATICS][name] = values
    for group in KeyGroup:
        written, computed = lock.fingerprint.of(group), fingerprint_of(tree, group)
        if computed != written:
            found[group][f"{name}: fingerprint of the {group.value}"] = (written, computed)
