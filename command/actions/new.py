"""Write a recipe for the user's own text and tokenizer, at its own size, with its reasons."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from command.arguments import Arguments, groups
from command.composition.conf_groups import compose_group
from command.composition.recipe_tree import compose_own_sections
from command.new_recipe import material
from command.new_recipe.page import (
    FAMILY,
    LIBRARY_BYTES,
    PageRequest,
    called,
    check_composes,
    check_trusted,
    cosine,
    describe_data,
    find_place,
    read_text,
    render,
    round_rate,
    rounded,
    tokenizer_settings,
    write,
)
from command.new_recipe.sizes import choose_sizes, keep_lengths
from components.command_line import command_line
from components.errors import RecipeError
from components.terminal import hide_folders, say, tell

Tree = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class NewRecipe(PageRequest):
    """A recipe on top of ``below``: the tree of ``like``, or only the family's model."""

    like: str | None
    below: Tree


def run(arguments: Arguments) -> None:
    """Write ``recipes/NAME.yaml``, or ``file=``, if what it says composes."""
    if (folder := _hugging_face_folder(arguments)) is not None:
        from command.new_recipe.imported import write_imported  # imports torch

        write_imported(arguments, folder)
        return
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


def _hugging_face_folder(arguments: Arguments) -> Path | None:
    """Return ``like=`` if it is a folder; the name or the file of a recipe is none.

    Raises:
        RecipeError: an option of the other kind of ``like=``.
    """
    folder = Path(arguments.like or "").expanduser()
    is_recipe = arguments.like in {None, *groups()["recipe"]} or folder.suffix == ".yaml"
    if not is_recipe and (folder.is_dir() or "/" in str(arguments.like)):
        if arguments.parameters is not None:
            problem = f"the config.json in {folder} says how many"
            raise RecipeError("parameters", problem, "leave it out")
        return folder
    if arguments.weights:
        remedy = "write like=FOLDER, of a model in the form of Hugging Face"
        raise RecipeError("weights", "like= names no folder that has them", remedy)
    return None


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


def _why(new: NewRecipe) -> str:
    text = (
        hide_folders(", ".join(new.text.patterns)) if new.text else "Python's standard library"
    )
    made = f"like {new.like}" if new.like else "of Llama's parts"
    return f"A language model {made}, of {rounded(new.sizes.parameters)}, on {text}."


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
