"""Pack a recipe or a finished run into one file: a bundle, or a lock alone.

A bundle runs on machines without the recipe's own files. ``verify`` compares both kinds later.
"""

import os
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from command.arguments import Arguments, read_point
from command.comparison import data_of, losses_in, software_of
from command.composition.compose import compose_run
from command.composition.recipe_tree import compose_own_sections
from command.recipe.lock_file import check_recipe_place, is_portable_key
from command.recipe.path_checks import open_run
from components.config.fingerprint import fingerprint_of
from components.config.key_groups import KeyGroup
from components.config.validation import read_section
from components.data.files import parents_of, replace_atomically
from components.errors import RecipeError
from components.run.ownership import is_own
from components.run.provenance import describe_software
from components.run.records import EnvironmentRecord
from components.sharing.lock import FORMAT, HASH_DIGITS, Lock, without_own_folders, write_text
from components.sharing.prepared import describe_prepared, find_prepared
from components.terminal import log_line, print_output

LOCK_SUFFIX = ".lock.yaml"


def _make_lock(arguments: Arguments, *, bundle: bool) -> Lock:
    """Build the lock of the recipe that the words choose, or of ``run=``."""
    folder = None
    if arguments.run is not None:
        folder, recipe = open_run(arguments.run, arguments.values)
        words = folder.read_file("environment.json", EnvironmentRecord).command[2:]
        if not any(word.startswith("recipe=") for word in words):
            where = str(folder.path / "environment.json")
            problem = "the recorded command has no recipe="
            raise RecipeError(where, problem, "pack recipe=... instead")
        command = read_point(words)  # received, without site settings
        arguments = replace(command, values={}, file_values=command.all_values, site={})
        if not is_own(folder.recipe):
            check_recipe_place(str(arguments.recipe), "environment.json: command")
    if arguments.searches:
        problem = "auto may find a different layout next time"
        raise RecipeError("parallelism", problem, "set the degrees that action=plan shows")
    if folder is not None:
        software, data, losses = software_of(folder), data_of(folder), losses_in(folder)
        own_sections = compose_own_sections(arguments) if bundle else {}
    else:
        composed = compose_run(arguments)
        recipe, own_sections = composed.recipe, composed.draft.own_sections
        prepared = find_prepared(recipe)
        software, data, losses = None, describe_prepared(prepared) if prepared else None, None
    tree = without_own_folders(recipe.model_dump(mode="json"))
    values = arguments.all_values.items()
    own = {"scale": recipe.scale.name, "cluster": recipe.cluster.name}
    lock = {
        "lock": FORMAT,
        "requested": {
            "recipe": _published_place(arguments.recipe),
            "choices": own if bundle else arguments.choices | own,
            "values": without_own_folders({
                k: v for k, v in values if not bundle or is_portable_key(k)
            }),
        },
        "fingerprint": {group.value: fingerprint_of(tree, group) for group in KeyGroup},
        "software": (software or describe_software()).model_dump(mode="json"),
        "data": data.model_dump(mode="json") if data else "none",
        "losses": losses.model_dump() if losses else "none",
        "resolved": tree,
        "composed": without_own_folders(own_sections) if bundle else "none",
    }
    return read_section(Lock, lock, "")


def _published_place(recipe: str | None) -> str | None:
    """Return a recipe's path relative to the working folder, without the user's name."""
    if recipe is None or not recipe.endswith(".yaml") or not recipe.startswith(("/", "~")):
        return recipe
    relative = os.path.relpath(Path(recipe).expanduser())
    is_named = Path.home().name in Path(relative).parts
    return str(without_own_folders(recipe)) if is_named else relative


def _write_lock(lock: Lock, arguments: Arguments, *, bundle: bool) -> Path:
    """Write the lock to a temporary file and rename it; replace only a file that was named."""
    resolved = lock.resolved
    name = f"{resolved['name']}-{lock.fingerprint.mathematics[:HASH_DIGITS]}.recipe.yaml"
    file = arguments.file or Path(name)
    if file.is_dir():
        raise RecipeError("file", f"{file} is a folder", f"write file={file}/{name}")
    if arguments.file is None and file.exists():
        remedy = f"write file={file} to replace it"
        raise RecipeError("file", f"{file} already exists", remedy)
    lines = [f"{resolved['name']}, {resolved['scale']['name']}: {resolved['description']}"]
    if bundle:
        lines.append(f"Run: python run.py {shlex.quote(f'recipe=./{file.name}')}")
    verify = shlex.join(["action=verify", f"file={file.name}"])
    lines.append(f"Compare with today: python run.py {verify}")
    try:
        with parents_of(file), replace_atomically(file) as stream:
            stream.write(write_text(lock, "\n".join(lines)).encode())
    except OSError as error:
        raise RecipeError(
            "file", f"cannot write {file}: {error.strerror}", "choose another path"
        ) from None
    return file


def run(arguments: Arguments) -> None:
    """Write ``NAME-HASH.recipe.yaml`` or the named file, and print what it does not contain.

    A file named ``*.lock.yaml`` is a lock. Any other file is a bundle.
    """
    bundle = arguments.file is None or not arguments.file.name.endswith(LOCK_SUFFIX)
    lock = _make_lock(arguments, bundle=bundle)
    file = _write_lock(lock, arguments, bundle=bundle)
    for line in _left_behind(lock) if bundle else ():
        log_line(f"not included: {line}")
    if not bundle and isinstance(lock.data, str):
        log_line("the data are not prepared: the lock has no data hashes")
    print_output(str(file))


def _left_behind(lock: Lock) -> Iterator[str]:
    """List what a receiver must provide: code, packages, text, tokenizer, weights."""
    tree = lock.model_dump(mode="json")
    commit = tree["software"]["code"]["commit"]
    yield f"the code (commit {commit}) and packages, only versions and hashes"
    if tree["software"]["code"]["changes"] != "absent":
        yield "code changes since that commit: commit or send these changes"
    data, model = tree["resolved"]["data"], tree["resolved"]["model"]
    hashed = ", only hashes" if tree["data"] != "none" else "; not prepared, so no hashes"
    for name, source in data["sources"].items():
        places = [*source["files"], *source.get("tokens", ())]
        if places or source.get("dataset"):
            yield f"the text of data.sources.{name}{hashed}"
    if data["tokenizer_folder"] != "none":
        yield f"the tokenizer in {data['tokenizer_folder']}{hashed}"
    if model.get("init_from", "none") != "none":
        yield f"the initial weights in {model['init_from']}, not hashed"
