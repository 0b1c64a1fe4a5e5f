"""Schema types: the base of every section, the groups of keys, frozen mappings and lists."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from types import MappingProxyType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

import pydantic
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
)
from pydantic.fields import FieldInfo

from components.ranges import Count as Count
from components.ranges import NamesPlace
from components.ranges import Place as Place
from components.ranges import Share as Share

T = TypeVar("T")


class KeyGroup(StrEnum):
    """What a key of a recipe decides, the weightiest first.

    *Mathematics*: which numbers are computed, up to the rounding of their sums. *Layout*: in
    what parts, in which order, by which kernels. *Machine*: where, what happens when something
    breaks, and how a run saves. *Record*: what is said and measured of the run; no weight
    depends on it.
    """

    MATHEMATICS = "mathematics"
    LAYOUT = "layout"
    MACHINE = "machine"
    RECORD = "record"


@dataclass(frozen=True)
class OtherGroup:
    """Keys below a field, each with a dot behind, that are of another group than the field."""

    group: KeyGroup
    keys: tuple[str, ...]


class Section(BaseModel):
    """Strict, frozen, and closed: an unknown key is an error.

    A field says its :class:`KeyGroup` in its ``Annotated``, for itself and all below it; a
    section may say in ``keys_group`` what holds for those of its fields that do not.
    """

    # An alias is a key that Python keeps for itself, as ``from``.
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, serialize_by_alias=True, defer_build=True
    )
    keys_group: ClassVar[KeyGroup | None] = None


def freeze(value: Any) -> Any:
    """Return ``value`` with mappings read-only and lists as tuples, all the way down."""
    if isinstance(value, Mapping):
        return MappingProxyType({key: freeze(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    return value


def thaw(value: Any) -> Any:
    """Return ``value`` as plain dictionaries and lists, which JSON and YAML can write."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [thaw(item) for item in value]
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return value


FrozenMapping = Annotated[
    Mapping[str, T], AfterValidator(freeze), PlainSerializer(thaw, return_type=dict)
]
# An object that a recipe takes away again is null.
NamedNodes = Annotated[
    FrozenMapping[Mapping[str, Any]],
    BeforeValidator(
        lambda nodes: (
            {name: node for name, node in nodes.items() if node is not None}
            if isinstance(nodes, Mapping)
            else nodes
        )
    ),
]
FrozenValue = Annotated[Any, AfterValidator(freeze), PlainSerializer(thaw)]
Node = FrozenMapping[Any]
Balance = Literal["layers", "layers_and_ends"]  # how stages share layers
Fraction = Annotated[float, Field(gt=0, lt=1)]
Words = Annotated[tuple[str, ...], Field(strict=False)]
Places = Annotated[tuple[Place, ...], Field(strict=False)]
Seconds = Annotated[float, Field(gt=0)]

# Pydantic reports the failures of every member of a union: with this, of the one that is meant.
SECTION, WORD = pydantic.Tag("(section)"), pydantic.Tag("(word)")
BY_FORM = pydantic.Discriminator(
    lambda value: SECTION.tag if isinstance(value, Mapping | BaseModel) else WORD.tag
)
OrNone = Annotated[Annotated[T, SECTION] | Annotated[Literal["none"], WORD], BY_FORM]


def sections_at(kind: type[BaseModel], location: Iterable[Any]) -> list[type[Section]]:
    """List the sections that the keys of ``location`` lead to from ``kind``."""
    here: list[Any] = [kind]
    for step in location:
        here = [one for annotation in here for one in _inside(annotation, step)]
    return [one for one in here if _is_section(one)]


@cache
def fields_of(section: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """List the fields of a section by their keys in YAML."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def names_place(kind: type[BaseModel], location: Sequence[Any]) -> bool:
    """Tell whether the texts at ``location`` name files or folders, as its field says."""
    keys = list(location)
    while isinstance(keys[-1], int):  # an item of a list
        keys.pop()
    fields = [fields_of(section).get(keys[-1]) for section in sections_at(kind, keys[:-1])]
    return any(field and _is_place((field.annotation, *field.metadata)) for field in fields)


def _is_place(annotations: Iterable[Any]) -> bool:
    return any(
        isinstance(one, NamesPlace)
        or _is_place(getattr(one, "__metadata__", ()))
        or _is_place(get_args(one))
        for one in annotations
    )


def _inside(annotation: Any, step: Any) -> list[Any]:
    """List types one step down: of a section's field, or of what a mapping or a list holds."""
    held = [one for one in get_args(annotation) if one is not Ellipsis]
    if _is_section(annotation):
        held = [field.annotation for key, field in fields_of(annotation).items() if key == step]
    return choices_of(held[-1]) if held else []


def choices_of(annotation: Any) -> list[Any]:
    """List the members of a union, or the annotation itself."""
    if get_origin(annotation) is Annotated:
        return choices_of(get_args(annotation)[0])
    if get_origin(annotation) in {Union, UnionType}:
        return [one for choice in get_args(annotation) for one in choices_of(choice)]
    return [annotation]


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)
