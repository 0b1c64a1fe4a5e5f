"""The file of a new recipe: render it, check it in its folder, and write it."""

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from command.arguments import ROOT, Arguments, list_config_groups
from command.composition.compose import compose_recipe
from command.files.trusted_paths import NAME, is_trusted
from command.new_recipe.material import as_written
from components.config.recipe import Recipe
from components.config.recipe_text import inline_yaml
from components.data.files import create_atomically, parents_of
from components.errors import RecipeError
from components.terminal import escape_invisible


def render_recipe(arguments: Arguments, *, file: Path, **values: object) -> str:
    """Render the template; its example commands name ``file``."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the output is YAML, not HTML; user text is quoted or on one line
    )
    environment.filters |= {"yaml": inline_yaml, "comment": as_comment}
    return environment.get_template("recipe.yaml.j2").render(
        command=as_comment(f"python run.py {shlex.join(arguments.words)}"),
        recipe=shlex.quote(f"recipe={recipe_word(file)}"),
        **values,
    )


def as_comment(text: str) -> str:
    """Return a text as one line without control characters."""
    return escape_invisible(" ".join(text.split()))


def write_checked_recipe(file: Path, page: str, check: Callable[[Path], object]) -> None:
    """Write the page to a temporary file in its folder, check it, and rename it to ``file``."""
    try:
        with parents_of(file), create_atomically(file, page.encode()) as unnamed:
            check(unnamed)
    except FileExistsError:
        raise _exists(file) from None


def check_composes(file: Path) -> Recipe:
    """Compose a recipe as for training on this machine, or raise a RecipeError."""
    chosen = {"cluster": "local", "scale": "full"}
    return compose_recipe(Arguments(words=(), recipe=str(file), choices=chosen), anywhere=True)


def _exists(file: Path) -> RecipeError:
    return RecipeError("file", f"{file} already exists", "choose another name, or remove it")


def find_place(arguments: Arguments) -> tuple[str, Path]:
    """Return the recipe's name and the file to write; RecipeError if taken or invalid."""
    name = arguments.values.get("name")
    if name is None:
        raise RecipeError("name", "the recipe requires a name", "write name=NAME")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        problem = f"{name!r} is not a valid name"
        raise RecipeError("name", problem, "use a to z, 0 to 9 and _, as in my_125m")
    file = arguments.file or ROOT / "recipes" / f"{name}.yaml"
    if arguments.file is None and name in list_config_groups()["recipe"]:
        remedy = f"choose another name, or write file={name}.yaml to put it elsewhere"
        raise RecipeError("name", f"the recipe {name!r} already exists", remedy)
    if file.suffix != ".yaml":
        raise RecipeError("file", f"{file} does not end in .yaml", f"write file={name}.yaml")
    if os.path.lexists(file):
        raise _exists(file)
    return name, file


def check_trusted(file: Path, named: Sequence[str]) -> None:
    """Raise a RecipeError if the recipe names absolute paths but its file is not trusted."""
    outside = [place for place in named if Path(place).is_absolute()]
    if outside and not is_trusted(file):
        problem = f"{file} is not in a trusted folder, so it cannot name {outside[0]}"
        remedy = f"remove file= to write to {ROOT / 'recipes'}"
        raise RecipeError("file", problem, remedy)


def recipe_word(file: Path) -> str:
    """Return the value of ``recipe=`` that selects the file."""
    in_recipes = (Path.cwd() / file).parent == ROOT / "recipes"
    return file.stem if in_recipes else as_written(file)
