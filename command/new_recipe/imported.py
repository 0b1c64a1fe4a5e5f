"""Write a recipe of the model that a ``config.json`` of Hugging Face describes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from command.arguments import Arguments
from command.composition.conf_groups import compose_defaults, compose_group
from command.composition.references import resolve_references
from command.new_recipe import material, page
from command.new_recipe.material import GivenTokenizer
from command.new_recipe.sizes import CONTINUED_LR, LONGEST, size_budget
from components.command_line import command_line
from components.config.schema.types import thaw
from components.errors import RecipeError
from components.terminal import say, tell

if TYPE_CHECKING:
    from components.convert.config_json import ImportedModel  # imports torch

WEIGHTS = "*.safetensors"
ROWS = ("vocab_size", "padded_vocab_size")
Tree = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Request(page.PageRequest):
    """A recipe of an imported model; ``model`` is the whole section, with references."""

    imported: "ImportedModel"
    model: Tree


def write_imported(arguments: Arguments, folder: Path) -> None:
    """Write ``recipes/NAME.yaml``, or ``file=``, if it composes to the model of the file."""
    from components.convert import config_json  # imports torch

    request = _read_request(arguments, folder)
    imported = request.imported
    page.check_trusted(request, imported.file.parent if arguments.weights else None)

    def check(written: Path) -> None:
        config_json.check_same(imported, thaw(page.check_composes(written).model))

    page.write(request.file, _fill(request, arguments), check)
    for remark in imported.remarks:
        say(f"note: {remark}")
    recipe = f"recipe={page.called(request.file)}"
    if arguments.weights:
        trains = f"it continues from them here: {command_line(recipe, 'scale=full')}"
    else:
        trains = f"a miniature trains here: {command_line(recipe)}"
    parameters = f"{request.sizes.parameters:,} parameters"
    say(f"{imported.family.architecture}, {parameters}; {trains}")
    tell(str(request.file))


def _read_request(arguments: Arguments, folder: Path) -> _Request:
    from components.convert.config_json import read_config  # imports torch

    name, file = page.find_place(arguments)
    imported = read_config(folder)
    if arguments.weights and not any(folder.glob(WEIGHTS)):
        problem = f"{folder} holds no {WEIGHTS}, and nothing else is read"
        raise RecipeError("weights", problem, "fetch them, or leave weights= out")
    text, tokenizer = page.read_text(arguments), _read_tokenizer(arguments, folder)
    rows = dict.fromkeys(ROWS, imported.vocab_size)
    model = _overlaid(compose_defaults()["model"], imported.section | rows)
    sizes = size_budget(
        _resolved(model),
        text_tokens=None,
        num_documents=None,
        longest=imported.context_tokens or LONGEST,
    )
    num_bytes = text.num_bytes if text else page.LIBRARY_BYTES
    trained = min(material.trained_pieces(num_bytes, sizes.parameters), imported.vocab_size)
    pieces, per_token = material.measure_tokens(
        text, tokenizer, trained, page.tokenizer_settings()
    )
    if text is not None:
        longest, tokens = sizes.sequence_length, int(num_bytes / per_token)
        sizes = size_budget(
            _resolved(model),
            text_tokens=tokens,
            num_documents=text.num_documents,
            longest=longest,
        )
    return _Request(
        name=name,
        file=file,
        imported=imported,
        model=model,
        text=text,
        tokenizer=tokenizer,
        pieces=pieces,
        bytes_per_token=per_token,
        sizes=sizes,
    )


def _read_tokenizer(arguments: Arguments, folder: Path) -> GivenTokenizer | None:
    """Read that of the folder, unless another is named, or one is to be trained."""
    has_one = (folder / material.FILE).is_file()
    words = arguments.choices.get("tokenizer", str(folder) if has_one else material.TRAIN)
    if arguments.weights and has_one and Path(words).expanduser().resolve() != folder.resolve():
        problem = f"{words}, but the weights were trained with the tokenizer in {folder}"
        raise RecipeError("tokenizer", problem, "leave tokenizer= out, or weights=true")
    return (
        None if words == material.TRAIN else material.read_tokenizer(Path(words).expanduser())
    )


def _fill(request: _Request, arguments: Arguments) -> str:
    imported, sizes = request.imported, request.sizes
    base = compose_group("model", page.FAMILY["model"])
    model = _said(base, request.model, imported.section | dict.fromkeys(ROWS))
    if arguments.weights:
        model["init_from"] = material.as_written(imported.file.parent)
    folder = " ".join(imported.file.resolve().parent.name.split())  # a comment is one line
    why = f"{page.rounded(sizes.parameters)} of {imported.family.architecture}"
    return page.render(
        "imported.yaml.j2",
        arguments,
        name=request.name,
        why=f"{why}, as the config.json of {folder} has it.",
        recipe=page.called(request.file),
        model=model,
        sizes=sizes,
        lr=page.round_rate(sizes.lr * (CONTINUED_LR if arguments.weights else 1)),
        schedule=page.cosine(sizes),
        context_tokens=imported.context_tokens,
        **page.describe_data(request),
    )


def _overlaid(below: Tree, above: Tree) -> Tree:
    return {**below} | {
        key: _overlaid(below.get(key) or {}, value) if isinstance(value, dict) else value
        for key, value in above.items()
    }


def _resolved(model: Tree) -> Tree:
    """Put the norm where it is referred to."""
    resolved: Tree = resolve_references({"model": model})["model"]
    return resolved


def _said(base: Mapping[str, Any], model: Tree, stated: Mapping[str, Any]) -> Tree:
    """Return what a recipe on top of ``base`` says: all that is stated, and what is other.

    A part of another class takes the place of that of ``base``.
    """
    if base.get("_target_") != model.get("_target_") or base.keys() - model.keys():
        return {"_replace_": True, **model}
    said: Tree = {}
    for key, value in model.items():
        below = base.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            if inner := _said(below, value, stated.get(key) or {}):
                said[key] = inner
        elif key in stated or below != value:
            said[key] = value
    return said
