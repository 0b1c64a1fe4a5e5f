"""Convert a ``config.json`` to the model section of a recipe. Code in it is never executed.

Every key is a setting of the family, known to have no effect, or an error. After the import,
the settings are compared with those that the family would write for the recipe's model.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

from components.config.part_nodes import read_decoder
from components.config.suggestions import suggest_respelling
from components.convert.family import FAMILIES, choose_family
from components.convert.hf_family import ANY, HFFamily, Section
from components.convert.rotations import FULL
from components.errors import RecipeError
from components.json_file import read_mapping

FILE = "config.json"
NO_FOLDER = f"set it to a folder with a {FILE} written by save_pretrained"
CODE = ("auto_map", "trust_remote_code")
# Keys of all classes: names, token ids, and settings of storage, caching and generation.
UNREAD = frozenset({
    *("architectures", "model_type", "vocab_size", "torch_dtype", "dtype", "_name_or_path"),
    *("transformers_version", "_commit_hash", "use_cache", "tokenizer_class", "pretraining_tp"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id"),
    *("_attn_implementation", "attn_implementation", "_flash_attn_2_enabled", "max_length"),
    *("output_hidden_states", "return_dict", "gradient_checkpointing", "id2label", "label2id"),
    *("task_specific_params", "do_sample", "temperature", "top_k", "top_p"),
    *("output_attentions", *CODE),
})
# Keys of all classes with their only accepted value, which is the classes' default.
PLAIN: Mapping[str, Any] = {"is_encoder_decoder": False, "add_cross_attention": False}


class ImportedModel(NamedTuple):
    """Model of a ``config.json``, with remarks on keys that are not followed."""

    file: Path
    config: Mapping[str, Any]
    family: HFFamily
    section: Section
    vocab_size: int
    context_tokens: int | None
    remarks: tuple[str, ...]


def read_config(folder: Path) -> ImportedModel:
    """Read and convert ``config.json`` of a folder.

    If a recipe cannot express a key's value, the RecipeError has key, value and remedy.
    """
    file = folder / FILE
    config, family = read_known(file)
    try:
        section, context_tokens = family.import_section(config)
    except RecipeError as error:
        raise RecipeError(f"{file}: {error.path}", error.problem, error.remedy) from None
    remarks = tuple(
        f"{key} in {file} is ignored: code in the folder is never run"
        for key in CODE
        if config.get(key)
    )
    pieces = config["vocab_size"]
    return ImportedModel(file, config, family, section, pieces, context_tokens, remarks)


def read_known(file: Path) -> tuple[dict[str, Any], HFFamily]:
    """Read a ``config.json`` and return it with its family."""
    config = read_mapping(file, finite=False, remedy=NO_FOLDER)  # keys may have no limit
    try:
        family = _find_family(config)
        _check_keys(config, family)
    except RecipeError as error:
        raise RecipeError(f"{file}: {error.path}", error.problem, error.remedy) from None
    return config, family


def check_same(imported: ImportedModel, section: Mapping[str, Any]) -> None:
    """Raise if the imported model differs from the file.

    Either no part here computes some settings (the message lists them all), or the model would
    be exported as another class, because its family's table is incomplete.
    """
    features, family = read_decoder(section), imported.family
    if (chosen := choose_family(features)) is not family:
        problem = f"{family.architecture} would be exported as {chosen.architecture}"
        remedy = "components/convert does not support this import yet"
        raise RecipeError(str(imported.file), problem, remedy)
    if different := family.compare_config(imported.config, features):
        problem = "this model is not supported" + "".join(
            f"\n  {key}: {there!r}, but recipes support only {here!r}"
            for key, there, here in different
        )
        remedy = "change the key in a copy of the file if the changed model will do"
        raise RecipeError(str(imported.file), problem, remedy)


def _find_family(config: Mapping[str, Any]) -> HFFamily:
    kind = config.get("model_type")
    families = {family.model_type: family for family in FAMILIES}
    if not isinstance(kind, str) or kind not in families:
        problem = f"unknown model family {kind!r}"
        raise RecipeError("model_type", problem, suggest_respelling(str(kind), families))
    return families[kind]


def _check_keys(config: Mapping[str, Any], family: HFFamily) -> None:
    """Raise on an unknown key that may change the model and on a value of the wrong type."""
    _check_kind("vocab_size", config.get("vocab_size"), 1)
    examples = {
        spelling: row.example_value
        for row in (*family.settings, *family.training)
        for spelling in row.spellings or (row.key,)
    }
    if "rope_theta" in examples:
        examples["rope_parameters"] = {}
    for key, value in config.items():
        if key in examples:
            _check_kind(key, value, examples[key])
        elif not _changes_nothing(key, value, family):
            problem = f"{value!r}: {family.architecture} has no such key here"
            remedy = "the key's effect is unknown: remove it from a copy of the file only if"
            raise RecipeError(key, problem, f"{remedy} the model computes the same without it")


def _changes_nothing(key: str, value: object, family: HFFamily) -> bool:
    if value is None or key in UNREAD or key in family.ignored:
        return True
    if key == "layer_types":
        return isinstance(value, list) and all(kind == FULL for kind in value)
    accepted = {**PLAIN, **family.accepted}
    return key in accepted and value == accepted[key]


def _check_kind(key: str, value: object, like: object) -> None:
    """Raise if a value does not have the type of ``like``, an example value of the key."""
    if like is ANY:
        return
    if isinstance(value, dict) and isinstance(like, dict) and like:  # examples of nested keys
        for name, item in value.items():
            _check_kind(f"{key}.{name}", item, like.get(name, ANY))
        return
    wanted, is_met = _KINDS[type(like)]
    if type(like) is int and like == 0:
        wanted, is_met = (
            "an integer from 0 on",
            lambda value: _is_number(value, int, above=-1),
        )
    if not is_met(value):
        raise RecipeError(key, f"{value!r} is not {wanted}", "fetch the file again")


def _is_number(value: object, *kinds: type, above: float = -math.inf) -> bool:
    return type(value) in kinds and above < value < math.inf  # type: ignore[operator]  # of a number's kind


def _is_list(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, list) and {type(item) for item in value} in ({int}, {str}, set())


def _is_rotation(value: object) -> bool:
    """Allow numbers, the name of a type, and a nested mapping of these per kind of layer."""
    if value is None:
        return True
    return isinstance(value, dict) and all(
        (item is None or isinstance(item, str))
        if name in {"type", "rope_type"}
        else isinstance(item, bool)
        if name == "truncate"
        else _is_number(item, int, float) or _is_rotation(item)
        for name, item in value.items()
    )


# Allowed values of a key, by the type of its example.
_KINDS: Mapping[type, tuple[str, Callable[[object], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("an integer from 1 on", lambda value: _is_number(value, int, above=0)),
    float: ("a number", lambda value: _is_number(value, int, float)),
    str: ("a word", lambda value: isinstance(value, str)),
    dict: ("a mapping from names to numbers, and a type to a word", _is_rotation),
    list: ("a list of integers or of words", _is_list),
    # If null, the class computes it from other keys.
    NoneType: (
        "a positive number",
        lambda value: value is None or _is_number(value, int, float, above=0),
    ),
}
