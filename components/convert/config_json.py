"""A received ``config.json``, said as the model section of a recipe: data, never code.

Every key is either understood by the family, or known to change nothing, or refused. What was
understood is compared with what the family would write of the recipe's model.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from components.config.part_nodes import read_decoder
from components.config.suggestions import respelt
from components.convert.family import FAMILIES, choose_family
from components.convert.hf_family import ANY, HFFamily, Section
from components.convert.rotations import FULL
from components.errors import RecipeError
from components.json_file import read_mapping

FILE = "config.json"
NO_FOLDER = f"name a folder with a {FILE} as save_pretrained writes it"
CODE = ("auto_map", "trust_remote_code")
# Keys of any class: names, numbers of pieces, what is stored, cached and generated.
UNREAD = frozenset({
    *("architectures", "model_type", "vocab_size", "torch_dtype", "dtype", "_name_or_path"),
    *("transformers_version", "_commit_hash", "use_cache", "tokenizer_class", "pretraining_tp"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id"),
    *(
        "_attn_implementation",
        "attn_implementation",
        "_flash_attn_2_enabled",
        "output_attentions",
    ),
    *("output_hidden_states", "return_dict", "gradient_checkpointing", "id2label", "label2id"),
    *("task_specific_params", "do_sample", "temperature", "top_k", "top_p", "max_length"),
    *CODE,
})
# Keys of which one value alone is what the classes compute by themselves.
PLAIN: Mapping[str, Any] = {"is_encoder_decoder": False, "add_cross_attention": False}


class ImportedModel(NamedTuple):
    """What a ``config.json`` says of a model, and what of it needs a remark."""

    file: Path
    config: Mapping[str, Any]
    family: HFFamily
    section: Section
    vocab_size: int
    context_tokens: int | None
    remarks: tuple[str, ...]


def read_config(folder: Path) -> ImportedModel:
    """Read ``config.json`` of a folder.

    Raises:
        RecipeError: there is none, it is of no known family, or a key has a value that no
            recipe says; with the key, the value and the way out.
    """
    file = folder / FILE
    config, family = read_known(file)
    try:
        section, context_tokens = family.import_section(config)
    except RecipeError as error:
        raise RecipeError(f"{file}: {error.path}", error.problem, error.remedy) from None
    remarks = tuple(
        f"{key} in {file} is not followed: no code of the folder is ever run"
        for key in CODE
        if config.get(key)
    )
    pieces = config["vocab_size"]
    return ImportedModel(file, config, family, section, pieces, context_tokens, remarks)


def read_known(file: Path) -> tuple[dict[str, Any], HFFamily]:
    """Read a ``config.json`` and the family that knows its keys.

    Raises:
        RecipeError: there is none, its family is not known, or a key or its kind of value is
            not one of the family's.
    """
    config = read_mapping(file, remedy=NO_FOLDER)
    try:
        family = _find_family(config)
        _check_keys(config, family)
    except RecipeError as error:
        raise RecipeError(f"{file}: {error.path}", error.problem, error.remedy) from None
    return config, family


def check_same(imported: ImportedModel, section: Mapping[str, Any]) -> None:
    """Refuse a model that differs from what the file says.

    Raises:
        RecipeError: it does, since no part here computes it; with every such key and value. Or
            it is exported as another class, because its family says too little of it.
    """
    features, family = read_decoder(section), imported.family
    if (found := choose_family(features)) is not family:
        problem = f"{family.architecture} would become {found.architecture}"
        remedy = "its family in components/convert does not say yet what a recipe has of it"
        raise RecipeError(str(imported.file), problem, remedy)
    theirs, ours = family.read_hf_config(imported.config), family.write_hf_config(features)
    different = [
        f"{key}: {theirs[key]!r}, but a recipe of this kind has {ours[key]!r}"
        for key in ours
        if theirs[key] != ours[key]
    ]
    if different:
        problem = "no part here computes this model\n  " + "\n  ".join(different)
        remedy = "change the key in a copy of the file, if that other model is meant, too"
        raise RecipeError(str(imported.file), problem, remedy)


def _find_family(config: Mapping[str, Any]) -> HFFamily:
    kind = config.get("model_type")
    families = {family.model_type: family for family in FAMILIES}
    if not isinstance(kind, str) or kind not in families:
        problem = f"{kind!r} is none of the families that are known here"
        raise RecipeError("model_type", problem, respelt(str(kind), families))
    return families[kind]


def _check_keys(config: Mapping[str, Any], family: HFFamily) -> None:
    """Refuse a key that may change the model, and a value of another kind than its key's."""
    _check_kind("vocab_size", config.get("vocab_size"), 1)
    examples = {
        spelling: row.example
        for row in (*family.settings, *family.training)
        for spelling in row.spellings or (row.key,)
    }
    if "rope_theta" in examples:
        examples["rope_parameters"] = {}
    for key, value in config.items():
        if key in examples:
            _check_kind(key, value, examples[key])
        elif not _changes_nothing(key, value, family):
            problem = f"{value!r}, but no {family.architecture} here has it"
            remedy = "what it changes is not known; take it out of a copy of the file only if"
            raise RecipeError(key, problem, f"{remedy} the model computes the same without it")


def _changes_nothing(key: str, value: object, family: HFFamily) -> bool:
    if value is None or key in UNREAD or key in family.ignored:
        return True
    if key == "layer_types":
        return isinstance(value, list) and all(kind == FULL for kind in value)
    accepted = {**PLAIN, **family.accepted}
    return key in accepted and value == accepted[key]


def _check_kind(key: str, value: object, like: object) -> None:
    """Compare a value with the kind that the key has, which ``like`` is one of."""
    if like is ANY:
        return
    match like:
        case bool():
            wanted, holds = "true or false", isinstance(value, bool)
        case int() if like == 0:
            wanted, holds = "a whole number from 0 on", _is_number(value, int, above=-1)
        case int():
            wanted, holds = "a whole number from 1 on", _is_number(value, int, above=0)
        case float():
            wanted, holds = "a number", _is_number(value, int, float)
        case str():
            wanted, holds = "a word", isinstance(value, str)
        case dict():
            wanted, holds = "numbers by name, with a word as type", _is_rotation(value)
        case list():
            wanted, holds = "a list of whole numbers or of words", _is_list(value)
        case _:  # the class works it out from others where it is null
            wanted = "a positive number"
            holds = value is None or _is_number(value, int, float, above=0)
    if not holds:
        raise RecipeError(key, f"{value!r} is not {wanted}", "fetch the file again")


def _is_number(value: object, *kinds: type, above: float = -math.inf) -> bool:
    return type(value) in kinds and value > above  # type: ignore[operator]  # of a number's kind


def _is_list(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, list) and {type(one) for one in value} in ({int}, {str}, set())


def _is_rotation(value: object) -> bool:
    """Allow numbers, the word of a type, and the same once more for each kind of layer."""
    if value is None:
        return True
    return isinstance(value, dict) and all(
        (one is None or isinstance(one, str))
        if name in {"type", "rope_type"}
        else _is_number(one, int, float) or _is_rotation(one)
        for name, one in value.items()
    )
