"""Freeze a recipe, or a run that was made, in one file that ``verify`` compares later."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from command.arguments import Arguments, read_point
from command.comparison import data_of, losses_in, software_of, words_of_run
from command.compose import compose_full, compose_recipe
from command.lock_file import as_received, check_recipe_place, travelling
from command.outcome import ActionResult
from command.path_checks import check_data_place
from components.config.key_groups import KeyGroup, fingerprint_of
from components.config.schema.recipe import Recipe, read_recipe
from components.data.files import replace_atomically
from components.errors import RecipeError
from components.run.folder import existing_run_folder
from components.run.ownership import is_own
from components.run.provenance import describe_software
from components.sharing.lock import (
    FORMAT,
    HASH_DIGITS,
    Lock,
    PreparedHashes,
    RecipeRequest,
    read_lock,
    write_text,
)
from components.sharing.prepared import describe_prepared, find_prepared
from components.terminal import say, tell

Kind = Literal["lock", "recipe"]


def make_lock(arguments: Arguments, *, bundle: bool) -> Lock:
    """Freeze what the words choose, or what ``run=`` was made of.

    Raises:
        RecipeError: what is wrong with the words or the run; a layout that is searched for.
    """
    run = arguments.folders.get("run")
    folder = existing_run_folder(run) if run else None
    if folder is not None:
        recipe = read_recipe(folder.recipe)
        check_data_place(folder, recipe, arguments.values)
        arguments = as_received(read_point(words_of_run(folder)))
        if not is_own(folder.recipe):
            check_recipe_place(str(arguments.recipe), "environment.json: command")
    if arguments.searches:
        problem = "auto: another search may find another layout"
        raise RecipeError("parallelism", problem, "name the degrees that action=plan shows")
    if folder is None:
        recipe = compose_recipe(arguments)
    assert arguments.recipe is not None
    found = find_prepared(recipe) if folder is None else None
    data = data_of(folder) if folder else describe_prepared(found) if found else None
    software = (software_of(folder) if folder else None) or describe_software()
    losses = losses_in(folder) if folder else None
    tree = recipe.model_dump(mode="json")
    return read_lock(
        {
            "lock": FORMAT,
            "asked": _asked(arguments, recipe, bundle=bundle),
            "fingerprint": {group.value: fingerprint_of(tree, group) for group in KeyGroup},
            "software": software.model_dump(mode="json"),
            "data": _plain(data),
            "losses": losses.model_dump() if losses else "none",
            "settled": tree,
            "composed": compose_full(arguments) if bundle else "none",
        },
        "",
    )


def write_lock(lock: Lock, arguments: Arguments, kind: Kind) -> tuple[Path, ActionResult]:
    """Write beside, then rename; a file that is there is replaced only if the user named it.

    Raises:
        RecipeError: a file of that name is there, or it cannot be written.
    """
    stem = f"{lock.settled['name']}-{lock.fingerprint.mathematics[:HASH_DIGITS]}"
    file = arguments.folders.get("file", Path(f"{stem}.{kind}.yaml"))
    if file.is_dir():
        raise RecipeError(
            "file", f"{file} is a folder", f"write file={file}/{stem}.{kind}.yaml"
        )
    if "file" not in arguments.folders and file.exists():
        raise RecipeError(
            "file", f"{file} is there already", f"write file={file} to replace it"
        )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(file) as stream:
            stream.write(write_text(lock, _head(lock, file, kind)).encode())
    except OSError as error:
        raise RecipeError("file", f"cannot write {file}: {error}", "name another") from None
    return file, ActionResult()


def _asked(arguments: Arguments, recipe: Recipe, *, bundle: bool) -> dict[str, Any]:
    values = travelling(arguments) if bundle else arguments.all_values
    choices = {"scale": recipe.scale.name, "cluster": recipe.cluster.name}
    others = {} if bundle else arguments.choices
    return RecipeRequest(
        recipe=str(arguments.recipe), choices={**others, **choices}, values=values
    ).model_dump(mode="json")


def _plain(data: PreparedHashes | None) -> Mapping[str, Any] | str:
    return data.model_dump(mode="json") if data else "none"


def _head(lock: Lock, file: Path, kind: Kind) -> str:
    first = f"{lock.settled['name']}, {lock.settled['scale']['name']}: {lock.settled['why']}"
    ways = [f"What differs now: python run.py action=verify file={file.name}"]
    if kind == "recipe":
        ways.insert(0, f"Run it: python run.py recipe=./{file.name}")
    return "\n".join([first, *ways])


def run(arguments: Arguments) -> ActionResult:
    """Write ``NAME-HASH.lock.yaml``, or the file that is named, and say what it lacks."""
    lock = make_lock(arguments, bundle=False)
    file, outcome = write_lock(lock, arguments, "lock")
    if isinstance(lock.data, str):
        say("no data are prepared: the lock has no hashes of them")
    tell(str(file))
    return outcome
