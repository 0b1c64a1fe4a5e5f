"""Write a recipe for the user's own text, with a chosen size or a Hugging Face model."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from command.arguments import Arguments, list_config_groups
from command.composition.conf_groups import compose_defaults, compose_group
from command.composition.recipe_tree import compose_own_sections
from command.composition.references import resolve_references
from command.new_recipe import material
from command.new_recipe.material import GivenText, GivenTokenizer
from command.new_recipe.page import (
    as_comment,
    check_composes,
    check_trusted,
    find_place,
    recipe_word,
    render_recipe,
    write_checked_recipe,
)
from command.new_recipe.sizes import (
    CONTINUED_LR,
    LONGEST,
    Sizes,
    choose_sizes,
    keep_lengths,
    merge_keys,
    size_run,
)
from components.command_line import command_line
from components.config.part_nodes import read_decoder
from components.config.schema.types import to_plain
from components.errors import RecipeError
from components.terminal import hide_folders, log_line, print_output

WEIGHTS = "*.safetensors"
DEFAULTS = [f"override /{group}: {option}" for group, option in material.FAMILY.items()]
MOST_SAMPLE_BYTES = 100_000_000  # per source, for a tokenizer: more text changes few pieces
LIBRARY = {"python_source": "python/source", "python_docs": "python/docs"}
Fields = dict[str, Any]  # of the template


def run(arguments: Arguments) -> None:
    """Write ``recipes/NAME.yaml`` or ``file=``, if the new recipe composes."""
    folder = _hugging_face_folder(arguments)
    name, file = find_place(arguments)
    text = material.find_text(arguments.choices.get("data"), arguments.column)
    tokenizer = _read_tokenizer(arguments, folder)
    tokenizer_folder = material.as_written(tokenizer.folder) if tokenizer else None
    weights = material.as_written(folder) if folder and arguments.weights else None
    check_trusted(file, [*text.file_patterns, *filter(None, (tokenizer_folder, weights))])
    check: Callable[[Path], object] = check_composes
    if folder is None:
        fields = _size_own(arguments, text, tokenizer, file)
    else:
        fields, check = _size_imported(arguments, text, tokenizer, folder)
    sizes: Sizes = fields["sizes"]
    page = render_recipe(
        arguments,
        file=file,
        name=name,
        text=text,
        sources=text.sources or {key: {"embedded": name} for key, name in LIBRARY.items()},
        tokenizer=tokenizer,
        folder=tokenizer_folder,
        sample_bytes="all" if text.num_bytes < MOST_SAMPLE_BYTES else MOST_SAMPLE_BYTES,
        weights=weights,
        **fields,
    )
    write_checked_recipe(file, page, check)
    command = command_line(f"recipe={recipe_word(file)}", *(["scale=full"] if weights else []))
    log_line(
        f"{fields['description']}\n"
        f"{sizes.parameters:,} parameters on {sizes.total_tokens:,} tokens in "
        f"{sizes.num_steps:,} steps; "
        f"train {'a miniature' if folder and not weights else 'it'}: {command}"
    )
    print_output(str(file))


def _hugging_face_folder(arguments: Arguments) -> Path | None:
    """Return ``like=`` if it is a folder, None if it names a recipe or a recipe file."""
    folder = Path(arguments.like or "").expanduser()
    is_recipe = (
        arguments.like in {None, *list_config_groups()["recipe"]} or folder.suffix == ".yaml"
    )
    if not is_recipe and (folder.is_dir() or "/" in str(arguments.like)):
        if arguments.parameters is not None:
            problem = f"the config.json in {folder} sets the size"
            raise RecipeError("parameters", problem, "remove parameters=")
        return folder
    if arguments.weights:
        remedy = "write like=FOLDER with a Hugging Face model"
        raise RecipeError("weights", "like= is not a folder with weights", remedy)
    return None


def _read_tokenizer(arguments: Arguments, folder: Path | None) -> GivenTokenizer | None:
    """Read the named tokenizer or the model folder's; return None if one is to be trained."""
    own = folder if folder and (folder / material.FILE).is_file() else None
    named = arguments.choices.get("tokenizer", str(own or material.TRAIN))
    if arguments.weights and own and Path(named).expanduser().resolve() != own.resolve():
        problem = f"{named}, but the weights were trained with the tokenizer in {own}"
        raise RecipeError("tokenizer", problem, "remove tokenizer= or weights=true")
    is_trained = named == material.TRAIN
    return None if is_trained else material.read_tokenizer(Path(named).expanduser())


def _size_own(
    arguments: Arguments, text: GivenText, tokenizer: GivenTokenizer | None, file: Path
) -> Fields:
    """Choose model shape and budget for the text, from another recipe or from Llama's parts."""
    like, parameters = arguments.like, arguments.parameters
    below = _compose_below(arguments)
    trained = material.trained_pieces(text.num_bytes, parameters)
    pieces, per_token = material.measure_tokens(text, tokenizer, trained)
    sizes = choose_sizes(
        below["model"],
        text_tokens=int(text.num_bytes / per_token),
        num_documents=text.num_documents,
        pieces=pieces,
        parameters=parameters,
    )
    lengths = _cosine(sizes) if like is None else keep_lengths(below, sizes.total_tokens)
    # Reset the parallelism that the recipe below sets for its own machine: one rank is enough.
    plain = compose_group("parallelism", "data")
    composed = below.get("parallelism", plain)
    parallelism = {key: value for key, value in plain.items() if composed[key] != value}
    defaults = DEFAULTS
    if like is not None:
        if like.endswith(".yaml"):  # a relative path starts at the file that names it
            below_file = Path(like).expanduser().resolve()
            place = os.path.relpath(below_file, file.parent.resolve())
            like = place if place.startswith("../") else f"./{place}"
        defaults = [like, DEFAULTS[1], "override /data: packed"]
    because = "chosen by the size of the text, from a million to a billion"
    if parameters is not None:
        because = f"the size nearest to the requested {parameters:_}"
    patterns = hide_folders(", ".join(text.file_patterns)) or "Python's standard library"
    origin = f"like {arguments.like}" if like else "of Llama's parts"
    return {
        "description": f"A language model {origin} with {_round(sizes)}, on {patterns}.",
        "because": because,
        "defaults": defaults,
        "like": arguments.like,
        "begins": below.get("from") is not None,
        "imported": False,
        "context_tokens": None,
        "model": sizes.model,
        "pieces": pieces,
        "text_tokens": sizes.text_tokens,
        "sizes": sizes,
        "optimizer": {"lr": _round_rate(sizes.lr), **lengths["optimizer"]},
        "schedule": lengths["schedule"],
        "parallelism": parallelism | {"microbatch_sequences": sizes.microbatch_sequences},
    }


def _compose_below(arguments: Arguments) -> Mapping[str, Any]:
    if arguments.like is None:
        return {"model": compose_group("model", material.FAMILY["model"])}
    try:
        return compose_own_sections(
            replace(arguments, recipe=arguments.like, choices={}, values={})
        )
    except RecipeError as error:
        path = "like" if error.path == "recipe" else error.path
        raise RecipeError(path, error.problem, error.remedy) from None


def _size_imported(
    arguments: Arguments, text: GivenText, tokenizer: GivenTokenizer | None, folder: Path
) -> tuple[Fields, Callable[[Path], object]]:
    """Size the run of a ``config.json``'s model, and return a check of the written recipe."""
    from components.convert import config_json  # imports torch

    imported = config_json.read_config(folder)
    if arguments.weights and not any(folder.glob(WEIGHTS)):
        problem = f"{folder} has no {WEIGHTS}, the only supported format"
        raise RecipeError("weights", problem, "download the weights, or remove weights=")
    rows = dict.fromkeys(("vocab_size", "padded_vocab_size"), imported.vocab_size)
    model = merge_keys(compose_defaults()["model"], imported.section | rows)
    if arguments.weights:
        model["init_from"] = material.as_written(folder)
    decoder = read_decoder(resolve_references({"model": model})["model"])
    trained = material.trained_pieces(text.num_bytes, decoder.total_parameters)
    pieces, per_token = material.measure_tokens(
        text, tokenizer, min(trained, imported.vocab_size)
    )
    text_tokens = int(text.num_bytes / per_token)
    sizes = size_run(
        decoder,
        text_tokens=text_tokens if text.sources else None,
        num_documents=text.num_documents,
        longest=imported.context_tokens or LONGEST,
    )
    lr, lengths = sizes.lr * (CONTINUED_LR if arguments.weights else 1), _cosine(sizes)
    architecture, name = imported.family.architecture, as_comment(folder.resolve().name)

    def check_composed(file: Path) -> None:
        config_json.check_same(imported, to_plain(check_composes(file).model))

    for remark in imported.remarks:
        log_line(f"note: {remark}")
    fields = {
        "description": f"{_round(sizes)} of {architecture}, as in the config.json of {name}.",
        "defaults": DEFAULTS,
        "like": None,
        "begins": False,
        "imported": True,
        "model": {"_replace_": True, **model},
        "context_tokens": imported.context_tokens,
        "pieces": pieces,
        "text_tokens": text_tokens,
        "sizes": sizes,
        "optimizer": {"lr": _round_rate(lr), **lengths["optimizer"]},
        "schedule": lengths["schedule"],
        "parallelism": {"microbatch_sequences": sizes.microbatch_sequences},
    }
    return fields, check_composed


def _cosine(sizes: Sizes) -> dict[str, dict[str, Any]]:
    """Return AdamW's beta2, and a cosine over the whole budget with decay to a tenth."""
    lengths = {"total_tokens": sizes.total_tokens, "warmup_tokens": sizes.warmup_tokens}
    return {
        "optimizer": {"beta2": sizes.beta2},
        "schedule": {**lengths, "warmup_from": 0.0, "start": 1.0, "end": 0.1},
    }


def _round_rate(lr: float) -> float:
    return float(f"{lr:.1e}")  # the scaling rule is no more precise


def _round(sizes: Sizes) -> str:
    unit, letter = (1e9, "B") if sizes.parameters >= 1e9 else (1e6, "M")
    return f"{sizes.parameters / unit:.3g}{letter} parameters"
