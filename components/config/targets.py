"""The gate: what a ``_target_`` may name, and which arguments it takes, read without importing.

A recipe is data, so it may only name a class that this repository itself defines. The module's
source is parsed, never run: a hostile recipe is refused before anything it names is imported.
"""

import ast
import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from components import ranges
from components.errors import RecipeError

ROOT = Path(__file__).resolve().parents[2]
TARGET = re.compile(r"components(\.[a-z][a-z0-9_]*)+\.[A-Z][A-Za-z0-9]*")
NODE_KEYS = frozenset({"_target_", "_partial_"})
REFUSAL = "a recipe may only name a class that this repository defines under components/"
# The rooms whose classes a section may name.
ROOMS = {
    "model": "components.model.",
    "tokenizer": "components.data.",
    "optimizer": "components.optim.",
    "schedule": "components.optim.",
}
# By which a class is known to be what its section wants: a method, or a class that it extends.
MARKS = {
    "model": ("loss",),
    "tokenizer": ("encode",),
    "optimizer": ("torch.optim.", "Optimizer"),
    "schedule": ("__call__",),
}
PARTIAL = frozenset({"optimizer"})  # sections whose class gets its other arguments later
SCALARS: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
}
RANGES = {name: kind for name, kind in vars(ranges).items() if get_origin(kind) is Annotated}


@dataclass(frozen=True)
class Signature:
    """Keyword arguments of a class: name to annotation, and those with a default.

    ``marks`` are its methods and the classes that it extends, as its source names them.
    """

    arguments: Mapping[str, ast.expr | None]
    optional: frozenset[str]
    marks: frozenset[str]


def nearest(word: str, known: list[str] | tuple[str, ...]) -> str:
    """Offer the known words that look like ``word``, or list all of them if none does."""
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "known: " + (", ".join(sorted(known)) or "none")


def check_nodes(tree: Mapping[str, Any], path: str = "") -> None:
    """Check every ``_target_`` node of ``tree`` against the class that it names.

    Raises:
        RecipeError: a target outside this repository, an unknown, missing or ill-typed
            argument, a key that only Hydra's own instantiation would read, or a reference.
    """
    for key, value in tree.items():
        _check_value(value, f"{path}.{key}" if path else str(key))


def _check_value(value: object, path: str) -> None:
    if isinstance(value, Mapping):
        if "_target_" in value:
            _check_node(value, path)
        check_nodes(value, path)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_value(item, f"{path}[{index}]")
    elif isinstance(value, str):
        refuse_reference(value, path)


def refuse_reference(text: str, path: str) -> None:
    """Refuse what would be resolved when a settled recipe is built: all is settled before.

    Two harmless texts that are joined can read ``${oc.env:HOME}``.

    Raises:
        RecipeError: ``${`` is in the text.
    """
    if "${" in text:
        raise RecipeError(path, f"{text!r} still refers to something", "write the value itself")


def _check_node(node: Mapping[str, Any], path: str) -> None:
    signature = read_signature(node["_target_"], f"{path}._target_")
    if "." not in path:  # one inside another was held to what that one does with it
        _check_partial(node, path, wanted=path in PARTIAL)
        refuse_stranger(signature, str(node["_target_"]), path)
    given = [key for key in node if key not in NODE_KEYS]
    for key in given:
        if key not in signature.arguments:
            hint = nearest(key, list(signature.arguments))
            raise RecipeError(f"{path}.{key}", f"{node['_target_']} takes no such key", hint)
        _check_type(signature.arguments[key], node[key], f"{path}.{key}")
        if isinstance(node[key], Mapping) and "_target_" in node[key]:
            called = _is_called(signature.arguments[key])
            _check_partial(node[key], f"{path}.{key}", wanted=called)
    missing = set(signature.arguments) - signature.optional - set(given)
    if missing and not node.get("_partial_", False):
        raise RecipeError(
            path,
            f"{node['_target_']} needs {', '.join(sorted(missing))}",
            f"set {path}.{min(missing)}=...",
        )


def refuse_stranger(signature: Signature, target: str, path: str) -> None:
    """Refuse a class of the right room that is no model, tokenizer, optimizer or schedule.

    Raises:
        RecipeError: it has nothing by which one is known.
    """
    wanted = MARKS[path]
    if not any(mark.startswith(wanted) for mark in signature.marks):
        problem = f"{target} is no {path}: it has no {' or '.join(wanted)}"
        raise RecipeError(f"{path}._target_", problem, f"see conf/{path}/ for those there are")


def _check_partial(node: Mapping[str, Any], path: str, *, wanted: bool) -> None:
    """Hold ``_partial_`` to what its reader does: call the node, or use it as it was built."""
    if node.get("_partial_", False) is not wanted:
        problem = f"{node['_partial_']!r}" if "_partial_" in node else "is missing"
        remedy = f"write {path}._partial_=true" if wanted else "leave it out"
        raise RecipeError(f"{path}._partial_", problem, remedy)


def _is_called(annotation: ast.expr | None) -> bool:
    """Tell whether an argument wants something to call, which gets its other arguments then."""
    return any(
        isinstance(choice, ast.Subscript) and ast.unparse(choice.value) == "Callable"
        for choice in _alternatives(annotation)
    )


def read_signature(target: object, path: str) -> Signature:
    """Read the constructor of the class ``target`` from its source file.

    Raises:
        RecipeError: ``target`` is no class defined at the top of a module of ``components``.
    """
    refuse_foreign(target, path)
    refuse_room(str(target), path)
    module, _, name = str(target).rpartition(".")
    file = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    if not file.is_file():
        raise RecipeError(path, f"{target!r}: there is no module {module}", REFUSAL)
    for statement in _parse(file).body:
        if isinstance(statement, ast.ClassDef) and statement.name == name:
            return _class_signature(statement)
    raise RecipeError(path, f"{target!r}: {module} defines no class {name}", REFUSAL)


def refuse_foreign(target: object, path: str) -> None:
    """Refuse what is no class's name in a module of ``components``.

    Raises:
        RecipeError: it is another package's, a function's, or reached through another name.
    """
    if not isinstance(target, str) or not TARGET.fullmatch(target):
        raise RecipeError(path, f"{target!r} is refused", REFUSAL)


def refuse_room(target: str, path: str) -> None:
    """Refuse a class of another room than the section's.

    Raises:
        RecipeError: the section names classes of one room, or of none.
    """
    room = ROOMS.get(path.partition(".")[0])
    if room is None:
        remedy = f"only {', '.join(ROOMS)} name classes"
        raise RecipeError(path, f"{target!r} is refused", remedy)
    if not target.startswith(room):
        raise RecipeError(path, f"{target!r} is refused", f"name a class of {room}*")


@cache
def _parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


def _class_signature(node: ast.ClassDef) -> Signature:
    methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
    marks = frozenset([*methods, *map(ast.unparse, node.bases)])
    if "__init__" in methods:
        return _init_signature(methods["__init__"].args, marks)
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
    names = {
        item.target.id: item.annotation for item in fields if isinstance(item.target, ast.Name)
    }
    optional = frozenset(
        item.target.id for item in fields if isinstance(item.target, ast.Name) and item.value
    )
    return Signature(names, optional, marks)


def _init_signature(arguments: ast.arguments, marks: frozenset[str]) -> Signature:
    """Keyword-only arguments, and positional ones besides ``self``."""
    positional = [*arguments.posonlyargs, *arguments.args][1:]
    names = {argument.arg: argument.annotation for argument in positional}
    names |= {argument.arg: argument.annotation for argument in arguments.kwonlyargs}
    optional = {
        argument.arg for argument in positional[len(positional) - len(arguments.defaults) :]
    }
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    optional |= {argument.arg for argument, default in pairs if default is not None}
    return Signature(names, frozenset(optional), marks)


def _check_type(annotation: ast.expr | None, value: object, path: str) -> None:
    choices = list(_alternatives(annotation))
    fitting = [choice for choice in choices if _fits(choice, value)]
    if fitting or not choices:
        _check_range(fitting, value, path)
        return
    wanted = " or ".join(_written(choice) for choice in choices)
    raise RecipeError(path, f"{value!r} is not {wanted}", f"give {path} a value of that type")


def _check_range(choices: list[ast.expr], value: object, path: str) -> None:
    """Hold a number against the range of :mod:`components.ranges` that annotates it."""
    for name in {_written(choice, whole=True) for choice in choices} & RANGES.keys():
        try:
            _adapter(name).validate_python(value, strict=True)
        except ValidationError as error:
            rule = error.errors()[0]["msg"].removeprefix("Input should be ")
            raise RecipeError(
                path, f"{value!r} is out of range", f"it has to be {rule}"
            ) from None


@cache
def _adapter(name: str) -> TypeAdapter[float]:
    return TypeAdapter(RANGES[name])


def _written(annotation: ast.expr, *, whole: bool = False) -> str:
    """Write an annotation as its author did; of a range, unless ``whole``, the type alone."""
    text = ast.unparse(annotation)
    return get_args(RANGES[text])[0].__name__ if text in RANGES and not whole else text


def _alternatives(annotation: ast.expr | None) -> Iterator[ast.expr]:
    if isinstance(annotation, ast.BinOp):
        yield from _alternatives(annotation.left)
        yield from _alternatives(annotation.right)
    elif annotation is not None:
        yield annotation


def _fits(annotation: ast.expr, value: object) -> bool:
    """Judge scalars, literals and containers; a class's name wants a node of its own."""
    if isinstance(annotation, ast.Constant):
        return value is None if annotation.value is None else True
    if isinstance(annotation, ast.Name) and (name := _written(annotation)) in SCALARS:
        return isinstance(value, SCALARS[name]) and (
            name == "bool" or not isinstance(value, bool)
        )
    if isinstance(annotation, ast.Subscript):
        return _fits_subscript(annotation, value)
    return isinstance(value, Mapping)


def _fits_subscript(annotation: ast.Subscript, value: object) -> bool:
    name = ast.unparse(annotation.value).rpartition(".")[2]
    if name == "Literal":
        return value in ast.literal_eval(
            annotation.slice
            if isinstance(annotation.slice, ast.Tuple)
            else ast.Tuple([annotation.slice])
        )
    if name in {"list", "tuple", "Sequence"}:
        return isinstance(value, list | tuple)
    return isinstance(value, Mapping)
