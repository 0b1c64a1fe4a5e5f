"""Specifications of callbacks and loggers, read from the source of their classes.

Their modules import torch, so a constructor is read here, not run: the arguments, their types
and defaults are the keys of its node.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, cast

from pydantic import Field, create_model

from components.config.schema.part import PartSpec
from components.config.schema.types import KeyGroup

ROOT = Path(__file__).resolve().parents[2]
TYPES = {"int": int, "float": float, "bool": bool, "str": str}
GROUP = re.compile(r"keys_group(?:: .+)? = KeyGroup\.(\w+)")
FOLDER = "RunFolder"  # of an argument that no recipe sets: the class is built for a run folder


class ClassSpec(PartSpec):
    """Settings of a class of ``sources`` with a base class whose name ends with ``ending``.

    The class may define in ``keys_group`` what its keys decide.
    """

    sources: ClassVar[str]
    ending: ClassVar[str]

    @classmethod
    def names_place(cls, key: str) -> bool:
        """Whether a text may name a file: any may, since the source has no such mark."""
        return key in cls.model_fields


class CallbackSpec(ClassSpec):
    """Settings of a callback; its class may exclude them from the mathematics."""

    keys_group = KeyGroup.MATHEMATICS
    sources = "components/train/callbacks/*.py"
    ending = "Callback"


class LoggerSpec(ClassSpec):
    """Settings of a logger."""

    keys_group = KeyGroup.RECORD
    sources = "components/train/loggers.py"
    ending = "Logger"


@cache
def read_class_specs(base: type[ClassSpec]) -> dict[str, type[ClassSpec]]:
    """Find the classes whose constructors take nothing but plain values and a run folder."""
    specs: dict[str, type[ClassSpec]] = {}
    for file in sorted(ROOT.glob(base.sources)):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for source in ast.parse(file.read_text("utf-8")).body:
            if not isinstance(source, ast.ClassDef) or not source.bases:
                continue
            target = f"{module}.{source.name}"
            if _last_name(source.bases[0]).endswith(base.ending):
                spec = _read_class(source, target, base)
                specs |= {target: spec} if spec else {}
    return specs


def _read_class(
    source: ast.ClassDef, target: str, base: type[ClassSpec]
) -> type[ClassSpec] | None:
    fields: dict[str, Any] = {}
    is_partial = False
    for name, annotation, is_required in _arguments(source):
        if annotation and _last_name(annotation) == FOLDER:
            is_partial = True
        elif (kind := _read_type(annotation)) is None:
            return None
        else:
            fields[name] = (kind, ... if is_required else Field(default=None))
    spec = cast("type[ClassSpec]", create_model(source.name, __base__=base, **fields))
    spec.target, spec.is_partial = target, is_partial
    spec.keys_group = _declared_group(source) or base.keys_group
    return spec


def _declared_group(source: ast.ClassDef) -> KeyGroup | None:
    matches = (GROUP.fullmatch(ast.unparse(line)) for line in source.body)
    return next((KeyGroup[line[1]] for line in matches if line), None)


def _arguments(source: ast.ClassDef) -> Iterator[tuple[str, ast.expr | None, bool]]:
    """Yield arguments of ``__init__``, or of a dataclass, with annotation and need."""
    for line in source.body:
        if isinstance(line, ast.FunctionDef) and line.name == "__init__":
            positional, named = line.args.args[1:], line.args.kwonlyargs
            needed = len(positional) - len(line.args.defaults)
            yield from (
                (argument.arg, argument.annotation, at < needed)
                for at, argument in enumerate(positional)
            )
            defaults = zip(named, line.args.kw_defaults, strict=True)
            yield from (
                (argument.arg, argument.annotation, default is None)
                for argument, default in defaults
            )
    for line in source.body if source.decorator_list else ():
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            value = ast.unparse(line.value) if line.value else ""
            if "init=False" not in value and "ClassVar" not in ast.unparse(line.annotation):
                yield line.target.id, line.annotation, line.value is None


def _read_type(annotation: ast.expr | None) -> Any:
    """Read ``int``, ``float``, ``bool``, ``str``, ``list[...]``, or any of them ``| None``."""
    match annotation:
        case ast.Name(name):
            return TYPES.get(name)
        case ast.Constant(None):
            return NoneType
        case ast.BinOp(left, ast.BitOr(), right):
            kinds = [_read_type(left), _read_type(right)]
            return None if None in kinds else kinds[0] | kinds[1]
        case ast.Subscript(ast.Name("list"), item):
            inner = _read_type(item)
            return None if inner is None else list[inner]  # type: ignore[valid-type]  # made when run  # built at run time
    return None


def _last_name(expression: ast.expr) -> str:
    """Return ``Callback`` of ``pytorch.Callback``."""
    return ast.unparse(expression).rpartition(".")[2]
