"""The gate: what a ``_target_`` may name, and which arguments it takes, read without importing.

A recipe is data, so it may only name a class that this repository itself defines. The module's
source is parsed, never run: a hostile recipe is refused before anything it names is imported.
"""

import ast
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import InstanceOf, TypeAdapter, ValidationError

from components import ranges
from components.config.suggestions import nearest, suggest, written_number
from components.errors import RecipeError

ROOT = Path(__file__).resolve().parents[2]
TARGET = re.compile(r"components(\.[a-z][a-z0-9_]*)+\.[A-Z][A-Za-z0-9]*")
NODE_KEYS = frozenset({"_target_", "_partial_"})
REFUSAL = "a recipe may only name a class that this repository defines under components/"
# The room whose classes a section may name, and by which method or base one is what it wants.
ROOMS = {
    "model": ("components.model.", ("loss",)),
    "tokenizer": ("components.data.", ("encode",)),
    "optimizer": ("components.optim.", ("torch.optim.", "Optimizer")),
    "schedule": ("components.optim.", ("__call__",)),
}
PARTIAL = frozenset({"optimizer"})  # sections whose class gets its other arguments later
RANGES = {name: kind for name, kind in vars(ranges).items() if get_origin(kind) is Annotated}
# Annotations by their text; a container is taken as it is, any other class wants a node.
TYPES: Mapping[str, Any] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "None": None,
    **RANGES,
    **dict.fromkeys(
        ("list", "tuple", "Sequence"), InstanceOf[list[Any]] | InstanceOf[tuple[Any, ...]]
    ),
}
EXAMPLES = {
    "int": "a whole number, as 8 or 1_000_000",
    "float": "a number, as 0.5 or 3e-4",
    "bool": "{0}=true or {0}=false",
    "str": "a text, in quotes where it looks like a number",
}
LITERAL = re.compile(r"(?:\w+\.)?Literal\[(.*)\]")
OF_PHASE = re.compile(r"^phases\.[^.]+\.")
OUT_OF_RANGE = re.compile(r"(greater|less)_than(_equal)?|finite_number")


class Signature(NamedTuple):
    """Keyword arguments of a class: the types that each may have, and those without a default.

    ``marks`` are its methods and the classes that it extends, as its source names them.
    """

    arguments: Mapping[str, tuple[str, ...]]
    required: frozenset[str]
    marks: tuple[str, ...]


def check_nodes(value: object, path: str = "") -> None:
    """Check every ``_target_`` node of a tree against the class that it names.

    Raises:
        RecipeError: a target outside this repository, an unknown, missing or ill-typed
            argument, a key that only Hydra's own instantiation would read, or a reference.
    """
    if isinstance(value, Mapping):
        if path and "_target_" in value:
            _check_node(value, path)
        for key, item in value.items():
            check_nodes(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            check_nodes(item, f"{path}[{index}]")
    elif isinstance(value, str):
        refuse_reference(value, path)


def refuse_reference(text: str, path: str) -> None:
    """Refuse what would be resolved late: harmless texts, joined, can read the environment."""
    if "${" in text:
        raise RecipeError(path, f"{text!r} still refers to something", "write the value itself")


def _check_node(node: Mapping[str, Any], path: str) -> None:
    signature = read_signature(node["_target_"], f"{path}._target_")
    if "." not in path:  # one inside another was held to what that one does with it
        _check_partial(node, path, wanted=path in PARTIAL)
        _, marks = ROOMS[path]
        if not any(mark.startswith(marks) for mark in signature.marks):
            problem = f"{node['_target_']} is no {path}: it has no {' or '.join(marks)}"
            remedy = f"see conf/{path}/ for those there are"
            raise RecipeError(f"{path}._target_", problem, remedy)
    for key in [key for key in node if key not in NODE_KEYS]:
        if key not in signature.arguments:
            hint = suggest(f"{path}.{key}", list(signature.arguments))
            raise RecipeError(f"{path}.{key}", f"{node['_target_']} takes no such key", hint)
        choices = signature.arguments[key]
        _check_type(choices, node[key], f"{path}.{key}")
        if isinstance(node[key], Mapping):
            _check_inner(choices, node[key], f"{path}.{key}")
    missing = signature.required.difference(node)
    if missing and not node.get("_partial_", False):
        problem = f"{node['_target_']} needs {', '.join(sorted(missing))}"
        raise RecipeError(path, problem, f"set {path}.{min(missing)}=...")


def _check_inner(choices: tuple[str, ...], inner: Mapping[str, Any], path: str) -> None:
    """Hold a mapping to the class that it names; a model's mappings name one, all of them."""
    if "_target_" in inner:
        called = any(choice.startswith("Callable[") for choice in choices)
        _check_partial(inner, path, wanted=called)
    elif path.startswith("model."):
        raise RecipeError(path, "names no class", f"set {path}._target_=...")


def _check_partial(node: Mapping[str, Any], path: str, *, wanted: bool) -> None:
    """Hold ``_partial_`` to what its reader does: call the node, or use it as it was built."""
    if node.get("_partial_", False) is not wanted:
        problem = f"{node['_partial_']!r}" if "_partial_" in node else "is missing"
        remedy = f"write {path}._partial_=true" if wanted else "leave it out"
        raise RecipeError(f"{path}._partial_", problem, remedy)


def read_signature(target: object, path: str) -> Signature:
    """Read a class of ``components`` from its source, or raise a RecipeError if it is none."""
    refuse_foreign(target, path)
    refuse_room(str(target), path)
    module, _, name = str(target).rpartition(".")
    file = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    if not file.is_file():
        raise RecipeError(path, f"{target!r}: there is no module {module}", REFUSAL)
    if name not in (signatures := _read_module(file)):
        raise RecipeError(path, f"{target!r}: {module} defines no class {name}", REFUSAL)
    return signatures[name]


def takes_place(target: object, key: str, path: str) -> bool:
    """Tell whether an argument of a class names a file or a folder.

    Raises:
        RecipeError: there is no such class.
    """
    if key not in (arguments := read_signature(target, f"{path}._target_").arguments):
        return False
    return any(re.search(r"\bPlaces?\b", choice) for choice in arguments[key])


def refuse_foreign(target: object, path: str) -> None:
    """Refuse what is no class's name in a module of ``components``."""
    if not isinstance(target, str) or not TARGET.fullmatch(target):
        raise RecipeError(path, f"{target!r} is refused", REFUSAL)


def refuse_room(target: str, path: str) -> None:
    """Refuse a class of another room than the section's, where a phase changes it too."""
    if (section := OF_PHASE.sub("", path).partition(".")[0]) not in ROOMS:
        remedy = f"only {', '.join(ROOMS)} name classes"
        raise RecipeError(path, f"{target!r} is refused", remedy)
    room, _ = ROOMS[section]
    if not target.startswith(room):
        raise RecipeError(path, f"{target!r} is refused", f"name a class of {room}*")


@cache
def _read_module(file: Path) -> dict[str, Signature]:
    body = ast.parse(file.read_text("utf-8")).body
    return {node.name: _read_class(node) for node in body if isinstance(node, ast.ClassDef)}


def _read_class(node: ast.ClassDef) -> Signature:
    """Read the keyword-only arguments of ``__init__``, or a dataclass's fields."""
    methods = {item.name: item.args for item in node.body if isinstance(item, ast.FunctionDef)}
    if "__init__" in methods:
        given = methods["__init__"]
        pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
        found = [(argument.arg, argument.annotation, default) for argument, default in pairs]
    else:
        found = [
            (item.target.id, item.annotation, item.value)
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        ]
    return Signature(
        arguments={name: _alternatives(annotation) for name, annotation, _ in found},
        required=frozenset(name for name, _, default in found if default is None),
        marks=(*methods, *map(ast.unparse, node.bases)),
    )


def _alternatives(annotation: ast.expr | None) -> tuple[str, ...]:
    """Return the text of each type that an annotation allows; none if there is none."""
    if isinstance(annotation, ast.BinOp):
        return (*_alternatives(annotation.left), *_alternatives(annotation.right))
    return () if annotation is None else (ast.unparse(annotation),)


def _check_type(choices: tuple[str, ...], value: object, path: str) -> None:
    """Hold a value against the types, and a number against :mod:`components.ranges`."""
    try:
        _adapter(choices).validate_python(value, strict=True)
    except ValidationError as failure:
        for error in failure.errors():
            if OUT_OF_RANGE.fullmatch(error["type"]):
                rule = error["msg"].removeprefix("Input should be ")
                problem = f"{value!r} is out of range"
                raise RecipeError(path, problem, f"it has to be {rule}") from None
        plain = [get_args(RANGES[one])[0].__name__ if one in RANGES else one for one in choices]
        shown = [LITERAL.sub(r"one of \1", one) for one in plain]
        problem = f"{value!r} is not {' or '.join(shown)}"
        raise RecipeError(path, problem, _example(plain, value, path)) from None


def _example(kinds: list[str], value: object, path: str) -> str:
    """Show what a value of one of these types looks like."""
    if numeric := {"int", "float"}.intersection(kinds):
        number = written_number(value, whole="float" not in numeric)
        if number is not None:
            return f"write {path}={number:_}"
    kind = kinds[0].partition("[")
    if kind[0].endswith("Literal"):
        return nearest(str(value), list(map(str, ast.literal_eval(f"({kind[2][:-1]},)"))))
    written = EXAMPLES.get(kinds[0])
    return f"write {written.format(path)}" if written else f"give {path} a value of that type"


@cache
def _adapter(choices: tuple[str, ...]) -> TypeAdapter[Any]:
    kind: Any = Union[*map(_type, choices)] if choices else Any
    return TypeAdapter(kind)


def _type(annotation: str) -> Any:
    name, _, inside = annotation.partition("[")
    if annotation.startswith("'"):  # a class that is defined further down
        return Any
    if name.endswith("Literal"):
        return Literal[ast.literal_eval(f"({inside[:-1]},)")]
    return TYPES.get(name.rpartition(".")[2], InstanceOf[Mapping[str, Any]])
