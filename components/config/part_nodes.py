"""Check of ``_target_`` nodes: a node may only name a class with a specification.

The check imports neither names from a recipe nor the classes.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, cast, get_args, get_origin

from components.config import model_spec, optim_spec, tokenizer_spec
from components.config.class_specs import CallbackSpec, ClassSpec, LoggerSpec, read_class_specs
from components.config.model_spec.decoder import DecoderSpec
from components.config.optim_spec.optimizers import OptimizerSpec
from components.config.optim_spec.schedules import ScheduleSpec
from components.config.schema.part import ModelPartSpec, PartSpec
from components.config.schema.types import choices_of
from components.config.suggestions import suggest_key, suggest_similar
from components.config.tokenizer_spec import TokenizerSpec
from components.config.validation import read_section
from components.errors import RecipeError

NODE_KEYS = frozenset({"_target_", "_partial_"})
# Sections with ``_target_`` nodes: base class of all nodes, base class of the section itself.
SECTIONS: Mapping[str, tuple[type[PartSpec], type[PartSpec]]] = {
    "model": (ModelPartSpec, DecoderSpec),
    "tokenizer": (TokenizerSpec, TokenizerSpec),
    "optimizer": (OptimizerSpec, OptimizerSpec),
    "schedule": (ScheduleSpec, ScheduleSpec),
}
# Sections with one named node per object.
NAMED: Mapping[str, type[ClassSpec]] = {"callbacks": CallbackSpec, "logger": LoggerSpec}
OF_PHASE = re.compile(r"^phases\.[^.]+\.")


@cache
def all_specs() -> Mapping[str, type[PartSpec]]:
    """Return all specifications by the name of their class."""
    modules = [tokenizer_spec]
    for package in (model_spec, optim_spec):
        infos = iter_modules(package.__path__, f"{package.__name__}.")
        modules += [import_module(module.name) for module in infos]
    members = [member for module in modules for member in vars(module).values()]
    specs = [kind for kind in members if isinstance(kind, type) and issubclass(kind, PartSpec)]
    return {kind.target: kind for kind in specs if kind.target}


def find_spec(target: object, path: str) -> type[PartSpec]:
    """Return the specification of the class ``target``, if it belongs to the section."""
    section = OF_PHASE.sub("", path).partition(".")[0]
    known: Mapping[str, type[PartSpec]]
    if section in NAMED:
        known = read_class_specs(NAMED[section])
    elif section in SECTIONS:
        base, _ = SECTIONS[section]
        known = {name: kind for name, kind in all_specs().items() if issubclass(kind, base)}
    else:
        remedy = f"only {', '.join([*SECTIONS, *NAMED])} accept _target_"
        raise RecipeError(path, f"{target!r} is not allowed here", remedy)
    if not isinstance(target, str) or target not in known:
        problem = f"{target!r} is not an allowed class of {section}"
        raise RecipeError(path, problem, suggest_similar(str(target), sorted(known)))
    return known[target]


def check_nodes(value: object, path: str = "") -> None:
    """Check every ``_target_`` node of a tree against the specification of its class."""
    _read_value(value, path)


def read_decoder(node: Mapping[str, Any]) -> DecoderSpec:
    """Read the ``model`` section of a recipe."""
    return cast("DecoderSpec", read_part(node, "model"))


def read_part(node: Mapping[str, Any], path: str) -> PartSpec:
    """Read the node at ``path`` and the nodes inside it; refuse references and wrong keys."""
    kind = find_spec(node.get("_target_"), f"{path}._target_")
    if path in SECTIONS and not issubclass(kind, SECTIONS[path][1]):
        problem = f"{kind.target} is not a class for {path}"
        raise RecipeError(f"{path}._target_", problem, f"see conf/{path}/ for valid classes")
    _check_partial(node, path, kind)
    keys = kind.list_keys()
    values: dict[str, Any] = {}
    for key, value in node.items():
        if key in NODE_KEYS:
            continue
        here = f"{path}.{key}"
        if key not in keys:
            raise RecipeError(here, f"unknown key of {kind.target}", suggest_key(here, keys))
        values[key] = _read_value(value, here)
        _check_place(kind, key, value, values[key], here)
    return read_section(kind, values, path)


def refuse_reference(text: str, path: str) -> None:
    """Refuse a ``${`` reference: resolved later, joined texts could read the environment."""
    if "${" in text:
        raise RecipeError(path, f"{text!r} has an unresolved reference", "write the value")


def _read_value(value: object, path: str) -> Any:
    """Return a value with its nodes read; sequences become lists, mappings dictionaries."""
    if isinstance(value, str):
        refuse_reference(value, path)
    if isinstance(value, Mapping):
        if path and "_target_" in value:
            return read_part(value, path)
        prefix = f"{path}." if path else ""
        return {key: _read_value(item, f"{prefix}{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_read_value(item, f"{path}[{index}]") for index, item in enumerate(value)]
    return value


def _check_partial(node: Mapping[str, Any], path: str, kind: type[PartSpec]) -> None:
    """Check that ``_partial_`` is true exactly if the class needs further arguments."""
    if node.get("_partial_", False) is not kind.is_partial:
        problem = f"{node['_partial_']!r}" if "_partial_" in node else "missing"
        remedy = f"write {path}._partial_=true" if kind.is_partial else "remove this key"
        raise RecipeError(f"{path}._partial_", problem, remedy)


def _check_place(kind: type[PartSpec], key: str, value: object, read: Any, path: str) -> None:
    """Refuse a part of the wrong kind, and a value instead of a part."""
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
        remedy = f"use one of {', '.join(parts)}" if parts else "write a value"
        raise RecipeError(f"{path}._target_", f"{read.target} is not valid here", remedy)
    problem = "missing _target_" if isinstance(value, Mapping) else f"{value!r} is not a class"
    raise RecipeError(path, problem, f"set {path}._target_=...")
