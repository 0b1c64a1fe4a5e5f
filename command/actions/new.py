"""Write a recipe for the user's own text and tokenizer, at its own size, with its reasons."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from command.arguments import ROOT, Arguments, groups
from command.composition.conf_groups import compose_group
from command.composition.recipe_tree import compose_own_sections
from command.files.trusted_paths import NAME, is_trusted
from command.new_recipe import material
from command.new_recipe.material import GivenText
from command.new_recipe.page import (
    FAMILY,
    LIBRARY_BYTES,
    PageRequest,
    check_composes,
    cosine,
    describe_data,
    exists,
    render,
    round_rate,
    write,
)
from command.new_recipe.sizes import choose_sizes, keep_lengths
from components.command_line import command_line
from components.errors import RecipeError
from components.terminal import hide_folders, say, tell
from data_prep.read import describe_skipped

Tree = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class NewRecipe(PageRequest):
    """A recipe on top of ``below``: the tree of ``like``, or only the family's model."""

    like: str | None
    below: Tree


def run(arguments: Arguments) -> None:
    """Write ``recipes/NAME.yaml``, or ``file=``, if what it says composes."""
    new = read_request(arguments)
    check_trusted(new)
    write(new.file, fill(new, arguments), check_composes)
    sizes = new.sizes
    say(
        f"{sizes.parameters:,} parameters on {sizes.total_tokens:,} tokens in {sizes.steps:,} "
        f"steps; train it: {command_line(f'recipe={called(new.file)}')}"
    )
    tell(str(new.file))


def read_request(arguments: Arguments) -> NewRecipe:
    """Read what the words give, and size a recipe for it.

    Raises:
        RecipeError: a name that is taken or none, or text, tokenizer or size that do not suit.
    """
    name, file = find_place(arguments)
    text = read_text(arguments)
    tokenizer = None
    if (words := arguments.choices.get("tokenizer", material.TRAIN)) != material.TRAIN:
        tokenizer = material.read_tokenizer(Path(words).expanduser())
    below = _below(arguments)
    num_bytes = text.num_bytes if text else LIBRARY_BYTES
    parameters = arguments.parameters
    pieces, bytes_per_token = material.measure_tokens(
        text,
        tokenizer,
        material.trained_pieces(num_bytes, parameters),
        tokenizer_settings(),
    )
    sizes = choose_sizes(
        below["model"],
        text_tokens=int(num_bytes / bytes_per_token),
        num_documents=text.num_documents if text else None,
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


def _below(arguments: Arguments) -> Tree:
    if arguments.like is None:
        return {"model": compose_group("model", FAMILY["model"])}
    asked = replace(arguments, recipe=arguments.like, choices={}, values={})
    try:
        return compose_own_sections(asked)
    except RecipeError as error:
        path = "like" if error.path == "recipe" else error.path
        raise RecipeError(path, error.problem, error.remedy) from None


def fill(new: NewRecipe, arguments: Arguments) -> str:
    """Fill the page."""
    return render(
        "recipe.yaml.j2",
        arguments,
        name=new.name,
        why=_why(new),
        because=_because(new, arguments.parameters),
        recipe=called(new.file),
        like=_entry(new),
        sizes=new.sizes,
        begins=new.below.get("from") is not None,
        **_rates(new),
        parallelism=_layout(new),
        **describe_data(new),
    )


def _rates(new: NewRecipe) -> dict[str, Tree]:
    """Give the keys of optimizer and schedule: a new rate, and lengths for the new budget."""
    sizes = new.sizes
    lr = round_rate(sizes.lr)
    if new.like is not None:
        kept = keep_lengths(new.below, sizes.total_tokens)
        return {**kept, "optimizer": {"lr": lr, **kept["optimizer"]}}
    return {"optimizer": {"lr": lr}, "schedule": cosine(sizes)}


def _entry(new: NewRecipe) -> str | None:
    """Name the recipe below as ``defaults`` does: a path counts from the file that names it."""
    if new.like is None or not new.like.endswith(".yaml"):
        return new.like
    place = os.path.relpath(Path(new.like).expanduser().resolve(), new.file.parent.resolve())
    return place if place.startswith("../") else f"./{place}"


def called(file: Path) -> str:
    """Return what ``recipe=`` takes."""
    in_recipes = (Path.cwd() / file).parent == ROOT / "recipes"
    return file.stem if in_recipes else material.as_written(file)


def _why(new: NewRecipe) -> str:
    text = (
        hide_folders(", ".join(new.text.patterns)) if new.text else "Python's standard library"
    )
    made = f"like {new.like}" if new.like else "of Llama's parts"
    return f"A language model {made}, of {rounded(new.sizes.parameters)}, on {text}."


def rounded(parameters: int) -> str:
    """Say a number of parameters in three digits."""
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
