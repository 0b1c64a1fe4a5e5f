"""Read and check ``_target_`` nodes of a recipe against the specifications of their classes.

A recipe is data: a node may only name a class that has a specification. No name of a recipe is
ever imported, and none of the classes is imported to check a node.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, cast, get_args, get_origin

from components.config import model_spec, optim_spec, tokenizer_spec
from components.config.class_specs import (
    CallbackSpec,
    ClassSpec,
    LoggerSpec,
    read_class_specs,
)
from components.config.model_spec.decoder import DecoderSpec
from components.config.optim_spec.optimizers import OptimizerSpec
from components.config.optim_spec.schedules import ScheduleSpec
from components.config.schema.part import ModelPartSpec, PartSpec
from components.config.schema.types import choices_of
from components.config.suggestions import nearest, suggest
from components.config.tokenizer_spec import TokenizerSpec
from components.config.validation import read_section
from components.errors import RecipeError

NODE_KEYS = frozenset({"_target_", "_partial_"})
# The sections whose nodes name classes: what any node in a section is, and what the section is.
SECTIONS: Mapping[str, tuple[type[PartSpec], type[PartSpec]]] = {
    "model": (ModelPartSpec, DecoderSpec),
    "tokenizer": (TokenizerSpec, TokenizerSpec),
    "optimizer": (OptimizerSpec, OptimizerSpec),
    "schedule": (ScheduleSpec, ScheduleSpec),
}
# The sections of nodes by name, one for each object.
NAMED: Mapping[str, type[ClassSpec]] = {"callbacks": CallbackSpec, "logger": LoggerSpec}
OF_PHASE = re.compile(r"^phases\.[^.]+\.")


@cache
def all_specs() -> Mapping[str, type[PartSpec]]:
    """Find the specifications by the class that each describes."""
    modules = [tokenizer_spec]
    for package in (model_spec, optim_spec):
        found = iter_modules(package.__path__, f"{package.__name__}.")
        modules += [import_module(module.name) for module in found]
    members = [member for module in modules for member in vars(module).values()]
    specs = [kind for kind in members if isinstance(kind, type) and issubclass(kind, PartSpec)]
    return {kind.target: kind for kind in specs if kind.target}


def find_spec(target: object, path: str) -> type[PartSpec]:
    """Find the specification of the class that ``target`` names, for the node at ``path``.

    Raises:
        RecipeError: the class has none, or is no part of the section.
    """
    section = OF_PHASE.sub("", path).partition(".")[0]
    known: Mapping[str, type[PartSpec]]
    if section in NAMED:
        known = read_class_specs(NAMED[section])
    elif section in SECTIONS:
        base, _ = SECTIONS[section]
        known = {name: kind for name, kind in all_specs().items() if issubclass(kind, base)}
    else:
        remedy = f"only {', '.join([*SECTIONS, *NAMED])} name classes"
        raise RecipeError(path, f"{target!r} is refused", remedy)
    if not isinstance(target, str) or target not in known:
        problem = f"{target!r} is refused: it is no part of the {section}"
        raise RecipeError(path, problem, nearest(str(target), sorted(known)))
    return known[target]


def check_nodes(value: object, path: str = "") -> None:
    """Check every ``_target_`` node of a tree against the specification of its class.

    Raises:
        RecipeError: a class without a specification, an unknown, missing or ill-typed key, a
            part in the place of another, or a reference.
    """
    if isinstance(value, Mapping) and path and "_target_" in value:
        read_part(value, path)
        return
    for key, item in _items_of(value, path):
        check_nodes(item, key)
    if isinstance(value, str):
        refuse_reference(value, path)


def read_decoder(node: Mapping[str, Any]) -> DecoderSpec:
    """Read the ``model`` section of a recipe.

    Raises:
        RecipeError: as `read_part` does.
    """
    return cast("DecoderSpec", read_part(node, "model"))


def read_part(node: Mapping[str, Any], path: str) -> PartSpec:
    """Read the node at ``path``, and the nodes inside it.

    Raises:
        RecipeError: a class without a specification, an unknown, missing or ill-typed key, a
            part in the place of another, or a reference.
    """
    kind = find_spec(node.get("_target_"), f"{path}._target_")
    if path in SECTIONS and not issubclass(kind, SECTIONS[path][1]):
        problem = f"{kind.target} is no {path}"
        raise RecipeError(f"{path}._target_", problem, f"see conf/{path}/")
    _check_partial(node, path, kind)
    keys = kind.list_keys()
    values: dict[str, Any] = {}
    for key, value in node.items():
        if key in NODE_KEYS:
            continue
        here = f"{path}.{key}"
        if key not in keys:
            raise RecipeError(here, f"{kind.target} takes no such key", suggest(here, keys))
        values[key] = _read_value(value, here)
        _check_place(kind, key, value, values[key], here)
    return read_section(kind, values, path)


def refuse_reference(text: str, path: str) -> None:
    """Refuse what would be resolved late: harmless texts, joined, can read the environment.

    Raises:
        RecipeError: the text has a ``${``.
    """
    if "${" in text:
        raise RecipeError(path, f"{text!r} still refers to something", "write the value itself")


def _read_value(value: object, path: str) -> Any:
    """Read the nodes in a value; lists become lists and mappings dictionaries."""
    if isinstance(value, str):
        refuse_reference(value, path)
    if isinstance(value, Mapping):
        if "_target_" in value:
            return read_part(value, path)
        return {key: _read_value(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_read_value(item, here) for here, item in _items_of(value, path)]
    return value


def _items_of(value: object, path: str) -> list[tuple[str, Any]]:
    """List what is in a mapping or a list, each with its path."""
    if isinstance(value, Mapping):
        return [(f"{path}.{key}" if path else str(key), item) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    return []


def _check_partial(node: Mapping[str, Any], path: str, kind: type[PartSpec]) -> None:
    """Hold ``_partial_`` to whether the class gets other arguments than the node's."""
    if node.get("_partial_", False) is not kind.is_partial:
        problem = f"{node['_partial_']!r}" if "_partial_" in node else "is missing"
        remedy = f"write {path}._partial_=true" if kind.is_partial else "leave it out"
        raise RecipeError(f"{path}._partial_", problem, remedy)


def _check_place(kind: type[PartSpec], key: str, value: object, read: Any, path: str) -> None:
    """Refuse a part in the place of another, and a value in the place of a part."""
    annotation = kind.model_fields[key].annotation
    if get_origin(annotation) is Mapping and isinstance(value, Mapping):
        for name, item in value.items():
            _check_kind(get_args(annotation)[1], item, read[name], f"{path}.{name}")
    else:
        _check_kind(annotation, value, read, path)


def _check_kind(annotation: Any, value: object, read: Any, path: str) -> None:
    choices = [choice for choice in choices_of(annotation) if isinstance(choice, type)]
    wanted = tuple(choice for choice in choices if issubclass(choice, PartSpec))
    if not (wanted or isinstance(read, PartSpec)) or isinstance(read, (*wanted, type(None))):
        return
    if isinstance(read, PartSpec):
        parts = [name for name, spec in all_specs().items() if issubclass(spec, wanted)]
        remedy = f"name one of {', '.join(parts)}" if parts else "write a value"
        raise RecipeError(f"{path}._target_", f"{read.target} cannot stand here", remedy)
    problem = "names no class" if isinstance(value, Mapping) else f"{value!r} names no class"
    raise RecipeError(path, problem, f"set {path}._target_=...")
