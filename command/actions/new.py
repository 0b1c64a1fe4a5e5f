"""Write a recipe for the user's own text and tokenizer, at its own size, with its reasons."""

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from command.arguments import ROOT, Arguments, groups
from command.compose import compose_full, compose_group, compose_recipe
from command.new_recipe import material
from command.new_recipe.material import GivenText, GivenTokenizer
from command.new_recipe.sizes import Sizes, choose_sizes, keep_lengths
from command.recipe.own_places import NAME, lies_in_own_place
from components.data.files import create_atomically
from components.errors import RecipeError
from components.terminal import say, tell

HERE = Path(material.__file__).parent
FAMILY: Mapping[str, str] = yaml.safe_load((HERE / "family.yaml").read_text("utf-8"))
LIBRARY_BYTES = 12_000_000  # of Python's source and documentation, which stand in for text
MOST_SAMPLE_BYTES = 100_000_000  # of each source, for a tokenizer: more changes few pieces
Tree = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class NewRecipe:
    """What goes into the page."""

    name: str
    file: Path
    like: str | None
    below: Tree  # what stands below it: the tree of ``like``, or the family's model alone
    text: GivenText | None
    tokenizer: GivenTokenizer | None
    pieces: int
    bytes_per_token: float
    sizes: Sizes


def run(arguments: Arguments) -> None:
    """Write ``recipes/NAME.yaml``, or ``file=``, if what it says composes."""
    new = read_request(arguments)
    check_trusted(new)
    write(new.file, fill(new, arguments))
    sizes = new.sizes
    say(
        f"{sizes.parameters:,} parameters on {sizes.total_tokens:,} tokens in {sizes.steps:,} "
        f"steps; train it: python run.py recipe={_called(new)}"
    )
    tell(str(new.file))


def read_request(arguments: Arguments) -> NewRecipe:
    """Read what the words give, and size a recipe for it.

    Raises:
        RecipeError: a name that is taken or none, or text, tokenizer or size that do not suit.
    """
    name, file = _place(arguments)
    text = None
    if (words := arguments.choices.get("data")) is not None:
        text = material.find_text(words)
    tokenizer = None
    if (words := arguments.choices.get("tokenizer", material.TRAIN)) != material.TRAIN:
        tokenizer = material.read_tokenizer(Path(words).expanduser())
    below = _below(arguments)
    num_bytes = text.num_bytes if text else LIBRARY_BYTES
    parameters = arguments.parameters
    trained = material.trained_pieces(num_bytes, parameters)
    pieces = tokenizer.pieces if tokenizer else trained
    bytes_per_token = material.bytes_per_token(text, tokenizer, pieces)
    sizes = choose_sizes(
        below["model"],
        text_tokens=int(num_bytes / bytes_per_token),
        pieces=pieces,
        parameters=parameters,
    )
    return NewRecipe(
        name=name,
        file=file,
        like=arguments.like,
        below=below,
        text=text,
        tokenizer=tokenizer,
        pieces=pieces,
        bytes_per_token=bytes_per_token,
        sizes=sizes,
    )


def _place(arguments: Arguments) -> tuple[str, Path]:
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


def check_trusted(new: NewRecipe) -> None:
    """Refuse a place where the recipe would count as received, if it names data elsewhere.

    Raises:
        RecipeError: it does; with what is named.
    """
    named = [*new.text.sources.values()] if new.text else []
    named += [material.as_written(new.tokenizer.folder)] if new.tokenizer else []
    outside = [place for place in named if Path(place).is_absolute()]
    if outside and not lies_in_own_place(new.file):
        problem = f"{new.file} is in no place of your own, where a recipe may name {outside[0]}"
        remedy = f"leave file= out: it is then written to {ROOT / 'recipes'}"
        raise RecipeError("file", problem, remedy)


def exists(file: Path) -> RecipeError:
    """Describe that nothing is written over a file."""
    return RecipeError("file", f"{file} is there already", "choose another name, or remove it")


def _below(arguments: Arguments) -> Tree:
    if arguments.like is None:
        return {"model": compose_group("model", FAMILY["model"])}
    asked = replace(arguments, recipe=arguments.like, choices={}, values={})
    try:
        return compose_full(asked)
    except RecipeError as error:
        path = "like" if error.path == "recipe" else error.path
        raise RecipeError(path, error.problem, error.remedy) from None


def fill(new: NewRecipe, arguments: Arguments) -> str:
    """Fill the page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # YAML, no page; what comes from users is quoted or on one line
    )
    environment.filters |= {"yaml": in_line, "key": _as_key}
    sizes, text = new.sizes, new.text
    return environment.get_template("recipe.yaml.j2").render(
        name=new.name,
        why=_why(new),
        because=_because(new, arguments.parameters),
        asked=" ".join(f"python run.py {shlex.join(arguments.words)}".split()),
        recipe=_called(new),
        like=_entry(new),
        family=FAMILY,
        sizes=sizes,
        **_rates(new),
        parallelism=_layout(new),
        tokenizer=new.tokenizer,
        folder=material.as_written(new.tokenizer.folder) if new.tokenizer else None,
        pieces=new.pieces,
        most_pieces=material.MOST_PIECES,
        bytes_of_a_piece=material.BYTES_OF_A_PIECE,
        parameters_of_a_piece=material.PARAMETERS_OF_A_PIECE,
        bytes_per_token=new.bytes_per_token,
        num_bytes=text.num_bytes if text else LIBRARY_BYTES,
        most_sample_bytes=MOST_SAMPLE_BYTES,
        sources=text.sources if text else {},
    )


def in_line(value: Any) -> str:
    """Write a value as one line of YAML, as recipes are written by hand."""
    match value:
        case dict():
            items = (f"{_as_key(key)}: {in_line(item)}" for key, item in value.items())
            return f"{{{', '.join(items)}}}"
        case bool() | str() | None:
            return json.dumps(value, ensure_ascii=False)
        case int():
            return f"{value:_}"
        case float():
            return f"{value:.1e}".replace("e-0", "e-") if value < 0.01 else f"{value:g}"
        case _:
            return f"[{', '.join(map(in_line, value))}]"


def _as_key(name: str) -> str:
    """Quote a name that YAML would read as another thing than text."""
    return name if yaml.safe_load(name) == name else f'"{name}"'


def _rates(new: NewRecipe) -> dict[str, Tree]:
    """Give the keys of optimizer and schedule: a new rate, and lengths for the new budget."""
    sizes = new.sizes
    if new.like is not None:
        kept = keep_lengths(new.below, sizes.total_tokens)
        return {**kept, "optimizer": {"lr": sizes.lr, **kept["optimizer"]}}
    lengths = {"total_tokens": sizes.total_tokens, "warmup_tokens": sizes.warmup_tokens}
    factors = {"warmup_from": 0.0, "start": 1.0, "end": 0.1}
    return {"optimizer": {"lr": sizes.lr}, "schedule": lengths | factors}


def _entry(new: NewRecipe) -> str | None:
    """Name the recipe below as ``defaults`` does: a path counts from the file that names it."""
    if new.like is None or not new.like.endswith(".yaml"):
        return new.like
    place = os.path.relpath(Path(new.like).expanduser().resolve(), new.file.parent.resolve())
    return place if place.startswith("../") else f"./{place}"


def _called(new: NewRecipe) -> str:
    return new.name if new.file.parent == ROOT / "recipes" else material.as_written(new.file)


def _why(new: NewRecipe) -> str:
    text = ", ".join(new.text.sources.values()) if new.text else "Python's standard library"
    made = f"like {new.like}" if new.like else "of Llama's parts"
    return f"A language model {made}, of {_rounded(new.sizes.parameters)}, on {text}."


def _rounded(parameters: int) -> str:
    unit, letter = (1e9, "B") if parameters >= 1e9 else (1e6, "M")
    return f"{parameters / unit:.3g}{letter} parameters"


def _because(new: NewRecipe, asked: int | None) -> str:
    if asked is not None:
        return f"the nearest to the {asked:_} that were asked for."
    return "as many as the text suffices for, but between a million and a billion."


def _layout(new: NewRecipe) -> Tree:
    """Take back what the recipe below says of its own machine: here one rank is enough."""
    plain = compose_group("parallelism", "data")
    given = new.below.get("parallelism", plain)
    changed = {key: value for key, value in plain.items() if given[key] != value}
    return changed | {"microbatch_sequences": new.sizes.microbatch_sequences}


def write(file: Path, page: str) -> None:
    """Write the page beside its place; if it composes there, it takes the place.

    Raises:
        RecipeError: what is wrong with it, or that a file is there.
    """
    folder = file.parent
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with create_atomically(file, page.encode()) as unnamed:
            check_composes(unnamed)
    except FileExistsError:
        raise exists(file) from None
    except RecipeError:
        if made:
            folder.rmdir()
        raise


def check_composes(file: Path) -> None:
    """Compose a recipe as it would train here, or raise a RecipeError."""
    chosen = {"cluster": "local", "scale": "full"}
    compose_recipe(Arguments(words=(), recipe=str(file), choices=chosen), anywhere=True)
