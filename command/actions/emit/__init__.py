"""Write the recipe as configuration of another trainer; one file an engine.

An engine is a module here with ``write(recipe, asked)``: the files by their names, and what
they do not say. What cannot be said there is refused, all of it at once.
"""

import importlib
from collections.abc import Iterable
from typing import NamedTuple

from command.arguments import Arguments
from command.compose import compose_recipe
from components.data.files import create_folder
from components.errors import RecipeError
from components.terminal import say, tell


class TrainerFiles(NamedTuple):
    """Files by name, how the run is started from their folder, and what they leave open."""

    files: dict[str, str]
    start: str
    notes: tuple[str, ...]


class UnsaidKey(NamedTuple):
    """A key of the recipe that an engine cannot say, what it has, and a value that it can."""

    key: str
    problem: str
    remedy: str


def run(arguments: Arguments) -> None:
    """Write ``file=FOLDER`` for ``engine=``; what it leaves open goes to standard error.

    Raises:
        RecipeError: no folder is named, it is there, or the recipe cannot be said.
    """
    if (folder := arguments.file) is None:
        raise RecipeError("file", "no folder is named", "write file=FOLDER, of a new folder")
    recipe = compose_recipe(arguments)
    asked = " ".join(arguments.words)
    engine = importlib.import_module(f"{__name__}.{arguments.engine.replace('-', '_')}")
    emitted: TrainerFiles = engine.write(recipe, asked)
    if folder.exists():
        raise RecipeError("file", f"{folder} exists", "name another folder")
    with create_folder(folder) as unfinished:
        for name, text in emitted.files.items():
            (unfinished / name).write_text(text, "utf-8")
    for note in emitted.notes:
        say(f"note: {note}")
    say(f"in that folder: {emitted.start}")
    tell(str(folder))


def refuse(engine: str, unsaid: Iterable[UnsaidKey]) -> None:
    """Raise a RecipeError of everything that the engine cannot say, if there is anything."""
    found = list(unsaid)
    if not found:
        return
    problem = f"{engine} cannot say this recipe\n  "
    problem += "\n  ".join(f"{one.key}: {one.problem}" for one in found)
    ways = dict.fromkeys(one.remedy for one in found)
    raise RecipeError(found[0].key, problem, "; ".join(ways))
