"""Freeze a recipe, or a run that was made, in one file: a bundle, or a lock alone.

A bundle runs where nothing of the recipe's own files is; ``verify`` compares both later.
"""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from command.arguments import Arguments, read_point
from command.comparison import data_of, losses_in, software_of
from command.composition.compose import compose
from command.composition.recipe_tree import compose_own_sections
from command.recipe.lock_file import as_received, check_recipe_place, travels
from command.recipe.path_checks import check_data_place
from components.config.check import read_recipe
from components.config.fingerprint import fingerprint_of
from components.config.key_groups import KeyGroup
from components.config.validation import read_section
from components.data.files import parents_of, replace_atomically
from components.errors import RecipeError
from components.run.folder import existing_run_folder
from components.run.ownership import is_own
from components.run.provenance import describe_software
from components.run.records import EnvironmentRecord
from components.sharing.lock import (
    FORMAT,
    HASH_DIGITS,
    Lock,
    without_own_folders,
    write_text,
)
from components.sharing.prepared import describe_prepared, find_prepared
from components.terminal import say, tell

LOCK_SUFFIX = ".lock.yaml"


def _make_lock(arguments: Arguments, *, bundle: bool) -> Lock:
    """Freeze what the words choose, or what ``run=`` was made of.

    Raises:
        RecipeError: what is wrong with the words or the run; a layout that is searched for.
    """
    folder = existing_run_folder(arguments.run) if arguments.run else None
    if folder is not None:
        recipe = read_recipe(folder.recipe)
        check_data_place(folder, recipe, arguments.values)
        words = folder.read("environment.json", EnvironmentRecord).command[2:]
        if not any(word.startswith("recipe=") for word in words):
            where = str(folder.path / "environment.json")
            problem = "its command names no recipe"
            raise RecipeError(where, problem, "freeze recipe=... instead")
        arguments = as_received(read_point(words))
        if not is_own(folder.recipe):
            check_recipe_place(str(arguments.recipe), "environment.json: command")
    if arguments.searches:
        problem = "auto: another search may find another layout"
        raise RecipeError("parallelism", problem, "name the degrees that action=plan shows")
    if folder is not None:
        software, data, losses = software_of(folder), data_of(folder), losses_in(folder)
        own_sections = compose_own_sections(arguments) if bundle else {}
    else:
        composed = compose(arguments)
        recipe, own_sections = composed.recipe, composed.draft.own_sections
        found = find_prepared(recipe)
        software, data, losses = None, describe_prepared(found) if found else None, None
    tree = without_own_folders(recipe.model_dump(mode="json"))
    values = arguments.all_values.items()
    own = {"scale": recipe.scale.name, "cluster": recipe.cluster.name}
    lock = {
        "lock": FORMAT,
        "asked": {
            "recipe": _published_place(arguments.recipe),
            "choices": own if bundle else arguments.choices | own,
            "values": without_own_folders({
                k: v for k, v in values if not bundle or travels(k)
            }),
        },
        "fingerprint": {group.value: fingerprint_of(tree, group) for group in KeyGroup},
        "software": (software or describe_software()).model_dump(mode="json"),
        "data": data.model_dump(mode="json") if data else "none",
        "losses": losses.model_dump() if losses else "none",
        "settled": tree,
        "composed": without_own_folders(own_sections) if bundle else "none",
    }
    return read_section(Lock, lock, "")


def _published_place(recipe: str | None) -> str | None:
    """Write a recipe's path relative to the working folder, unless that tells whose it is."""
    if recipe is None or not recipe.endswith(".yaml") or not recipe.startswith(("/", "~")):
        return recipe
    relative = os.path.relpath(Path(recipe).expanduser())
    is_named = Path.home().name in Path(relative).parts
    return str(without_own_folders(recipe)) if is_named else relative


def _write_lock(lock: Lock, arguments: Arguments, *, bundle: bool) -> Path:
    """Write beside, then rename; a file that is there is replaced only if the user named it.

    Raises:
        RecipeError: a file of that name is there, or it cannot be written.
    """
    settled = lock.settled
    name = f"{settled['name']}-{lock.fingerprint.mathematics[:HASH_DIGITS]}.recipe.yaml"
    file = arguments.file or Path(name)
    if file.is_dir():
        raise RecipeError("file", f"{file} is a folder", f"write file={file}/{name}")
    if arguments.file is None and file.exists():
        remedy = f"write file={file} to replace it"
        raise RecipeError("file", f"{file} is there already", remedy)
    lines = [f"{settled['name']}, {settled['scale']['name']}: {settled['why']}"]
    if bundle:
        lines.append(f"Run it: python run.py {shlex.quote(f'recipe=./{file.name}')}")
    verify = shlex.join(["action=verify", f"file={file.name}"])
    lines.append(f"What differs now: python run.py {verify}")
    try:
        with parents_of(file), replace_atomically(file) as stream:
            stream.write(write_text(lock, "\n".join(lines)).encode())
    except OSError as error:
        raise RecipeError(
            "file", f"cannot write {file}: {error.strerror}", "name another"
        ) from None
    return file


def run(arguments: Arguments) -> None:
    """Write ``NAME-HASH.recipe.yaml``, or the file that is named, and say what it lacks.

    A file whose name ends in ``.lock.yaml`` is a lock, any other a bundle.
    """
    bundle = arguments.file is None or not arguments.file.name.endswith(LOCK_SUFFIX)
    lock = _make_lock(arguments, bundle=bundle)
    file = _write_lock(lock, arguments, bundle=bundle)
    for line in _left_behind(lock) if bundle else ():
        say(f"not in the file: {line}")
    if not bundle and isinstance(lock.data, str):
        say("no data are prepared: the lock has no hashes of them")
    tell(str(file))


def _left_behind(lock: Lock) -> Iterator[str]:
    """Name what a receiver has to bring: code, packages, text, tokenizer, weights."""
    tree = lock.model_dump(mode="json")
    commit = tree["software"]["code"]["commit"]
    yield f"the code (commit {commit}) and packages, by version and hash"
    if tree["software"]["code"]["changes"] != "absent":
        yield "changes of the code since that commit: commit them, or send them too"
    data, model = tree["settled"]["data"], tree["settled"]["model"]
    hashed = ", by hash" if tree["data"] != "none" else "; not prepared, so not even by hash"
    for name, source in data["sources"].items():
        places = [*source["files"], *source.get("tokens", ())]
        if places or source.get("dataset"):
            yield f"the text of data.sources.{name}{hashed}"
    if data["tokenizer_folder"] != "none":
        yield f"the tokenizer in {data['tokenizer_folder']}{hashed}"
    if model.get("init_from", "none") != "none":
        yield f"the weights to begin with in {model['init_from']}, not hashed"
