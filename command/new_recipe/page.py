"""The page of a recipe that is written for a user: filled, checked where it will lie, kept."""

import json
import math
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from command.arguments import ROOT, Arguments, groups
from command.composition.compose import compose_recipe
from command.composition.conf_groups import compose_group
from command.files.trusted_paths import NAME, is_trusted
from command.new_recipe import material
from command.new_recipe.material import GivenText, GivenTokenizer
from command.new_recipe.sizes import Sizes
from components.config.recipe import Recipe
from components.data.files import create_atomically, parents_of
from components.errors import RecipeError
from components.terminal import printable, say
from data_prep.read import describe_skipped

HERE = Path(__file__).parent
FAMILY: Mapping[str, str] = yaml.safe_load((HERE / "family.yaml").read_text("utf-8"))
LIBRARY_BYTES = 12_000_000  # of Python's source and documentation, which stand in for text
MOST_SAMPLE_BYTES = 100_000_000  # of each source, for a tokenizer: more changes few pieces
PLAIN_TEXT = re.compile(r"[A-Za-z_.][A-Za-z0-9_./-]*")
Tree = Mapping[str, Any]


def render(template: str, arguments: Arguments, *, recipe: str, **said: object) -> str:
    """Fill a page of ``command/new_recipe``; its commands take ``recipe``."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # YAML, no page; what comes from users is quoted or on one line
    )
    environment.filters |= {"yaml": in_line, "key": _as_key, "comment": as_comment}
    asked = as_comment(f"python run.py {shlex.join(arguments.words)}")
    return environment.get_template(template).render(
        family=FAMILY,
        asked=asked,
        action=arguments.action,
        recipe=shlex.quote(f"recipe={recipe}"),
        **said,
    )


@dataclass(frozen=True, kw_only=True)
class PageRequest:
    """What any new recipe is made of."""

    name: str
    file: Path
    text: GivenText | None
    tokenizer: GivenTokenizer | None
    pieces: int
    bytes_per_token: float
    sizes: Sizes


def describe_data(request: PageRequest) -> Tree:
    """Return what the template needs about text and tokenizer."""
    text, tokenizer = request.text, request.tokenizer
    num_bytes = text.num_bytes if text else LIBRARY_BYTES
    return {
        "tokenizer": tokenizer,
        "folder": material.as_written(tokenizer.folder) if tokenizer else None,
        "pieces": request.pieces,
        "most_pieces": material.MOST_PIECES,
        "bytes_of_a_piece": material.BYTES_OF_A_PIECE,
        "parameters_of_a_piece": material.PARAMETERS_OF_A_PIECE,
        "bytes_per_token": request.bytes_per_token,
        "num_bytes": num_bytes,
        "text_tokens": int(num_bytes / request.bytes_per_token),
        "most_sample_bytes": MOST_SAMPLE_BYTES,
        "patterns": text.patterns if text else [],
        "sources": {name: source.keys for name, source in text.sources.items()} if text else {},
    }


def in_line(value: Any) -> str:
    """Write a value as one line of YAML, as recipes are written by hand."""
    match value:
        case dict():
            items = (f"{_as_key(key)}: {in_line(item)}" for key, item in value.items())
            return f"{{{', '.join(items)}}}"
        case str():
            return _as_text(value)
        case bool() | None:
            return json.dumps(value)
        case int():
            return f"{value:_}"
        case float():
            return _as_float(value)
        case _:
            return f"[{', '.join(map(in_line, value))}]"


def _as_float(value: float) -> str:
    """Write every digit, in a form that YAML reads as a number."""
    mantissa, exponential, exponent = repr(value).partition("e")
    if not exponential:
        return mantissa
    dot = "" if "." in mantissa else ".0"
    return f"{mantissa}{dot}e{int(exponent):+d}"


def _as_key(name: str) -> str:
    """Quote a name that YAML might read as another thing than text."""
    plain = PLAIN_TEXT.fullmatch(name) and yaml.safe_load(name) == name
    return name if plain else _as_text(name)


def _as_text(value: str) -> str:
    return yaml.safe_dump(value, default_style='"', allow_unicode=True, width=math.inf).rstrip()


def as_comment(text: str) -> str:
    """Write a text as one line without control characters."""
    return printable(" ".join(text.split()))


def round_rate(lr: float) -> float:
    """Keep two digits: a rule gives no more."""
    return float(f"{lr:.1e}")


def cosine(sizes: Sizes) -> Tree:
    """Give the keys of a cosine as long as the budget, down to a tenth."""
    lengths = {"total_tokens": sizes.total_tokens, "warmup_tokens": sizes.warmup_tokens}
    return {**lengths, "warmup_from": 0.0, "start": 1.0, "end": 0.1}


def write(file: Path, page: str, check: Callable[[Path], object]) -> None:
    """Write the page beside its place; if it passes the check there, it takes the place.

    Raises:
        RecipeError: what is wrong with it, or that a file is there.
    """
    try:
        with parents_of(file), create_atomically(file, page.encode()) as unnamed:
            check(unnamed)
    except FileExistsError:
        raise exists(file) from None


def check_composes(file: Path) -> Recipe:
    """Compose a recipe as it would train here, or raise a RecipeError."""
    chosen = {"cluster": "local", "scale": "full"}
    return compose_recipe(Arguments(words=(), recipe=str(file), choices=chosen), anywhere=True)


def exists(file: Path) -> RecipeError:
    """Describe that nothing is written over a file."""
    return RecipeError("file", f"{file} is there already", "choose another name, or remove it")


def read_text(arguments: Arguments) -> GivenText | None:
    """Find the files of ``data=``, if it is given.

    Raises:
        RecipeError: they are no text to train on.
    """
    words = arguments.choices.get("data")
    if words is None and arguments.column is not None:
        raise RecipeError("column", "no text is named that has it", "name it: data=FILES")
    text = None if words is None else material.find_text(words, arguments.column)
    if text and text.empty:
        say(describe_skipped(text.empty))
    return text


def tokenizer_settings() -> Tree:
    """Return the settings of the tokenizer that a new recipe trains."""
    settings = compose_group("tokenizer", FAMILY["tokenizer"])
    return {key: value for key, value in settings.items() if key != "_target_"}


def find_place(arguments: Arguments) -> tuple[str, Path]:
    """Return the recipe's name, and the file to write.

    Raises:
        RecipeError: it has no name or one that is taken, or the file is there.
    """
    name = arguments.values.get("name")
    if name is None:
        raise RecipeError("name", "the recipe has none", "write name=NAME")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        problem = f"{name!r} is no name"
        raise RecipeError("name", problem, "take a to z, 0 to 9 and _, as in my_125m")
    file = arguments.file or ROOT / "recipes" / f"{name}.yaml"
    if arguments.file is None and name in groups()["recipe"]:
        remedy = f"choose another name, or write file={name}.yaml to put it elsewhere"
        raise RecipeError("name", f"there is a recipe {name!r} already", remedy)
    if file.suffix != ".yaml":
        raise RecipeError("file", f"{file} does not end in .yaml", f"write file={name}.yaml")
    if os.path.lexists(file):
        raise exists(file)
    return name, file


def check_trusted(new: PageRequest, weights: Path | None = None) -> None:
    """Raise a RecipeError if the recipe names outside data, but would count as received."""
    folders = [new.tokenizer and new.tokenizer.folder, weights]
    named = new.text.patterns if new.text else []
    named += [material.as_written(folder) for folder in folders if folder]
    outside = [place for place in named if Path(place).is_absolute()]
    if outside and not is_trusted(new.file):
        problem = f"{new.file} is in no place of your own, where a recipe may name {outside[0]}"
        remedy = f"leave file= out: it is then written to {ROOT / 'recipes'}"
        raise RecipeError("file", problem, remedy)


def called(file: Path) -> str:
    """Return what ``recipe=`` takes."""
    in_recipes = (Path.cwd() / file).parent == ROOT / "recipes"
    return file.stem if in_recipes else material.as_written(file)


def rounded(parameters: int) -> str:
    """Say a number of parameters in three digits."""
    unit, letter = (1e9, "B") if parameters >= 1e9 else (1e6, "M")
    return f"{parameters / unit:.3g}{letter} parameters"
