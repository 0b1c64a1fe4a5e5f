"""Schema types: the base class of sections, key groups, frozen mappings and lists."""

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
    """Group of a recipe key: what the key changes, the most important group first.

    *Mathematics*: the computed numbers, up to rounding of sums. *Layout*: partition, order and
    kernels of the computation. *Machine*: where it runs, failure handling, and checkpoints.
    *Record*: descriptions and measurements; no weight depends on them.
    """

    MATHEMATICS = "mathematics"
    LAYOUT = "layout"
    MACHINE = "machine"
    RECORD = "record"


@dataclass(frozen=True)
class OtherGroup:
    """Key group of some keys below a field (with a trailing dot), if it is not the field's.

    A ``*`` in a key stands for any name.
    """

    group: KeyGroup
    keys: tuple[str, ...]


class Section(BaseModel):
    """Base class of sections: strict, frozen, and closed (an unknown key is an error).

    The ``Annotated`` of a field may contain its :class:`KeyGroup`, which applies to all keys
    below it; ``keys_group`` of a section applies to fields without a group.
    """

    # An alias is a key that is a Python keyword, such as ``from``.
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, serialize_by_alias=True, defer_build=True
    )
    keys_group: ClassVar[KeyGroup | None] = None


def to_frozen(value: Any) -> Any:
    """Return ``value`` with read-only mappings and tuples for lists, recursively."""
    if isinstance(value, Mapping):
        return MappingProxyType({key: to_frozen(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(to_frozen(item) for item in value)
    return value


def to_plain(value: Any) -> Any:
    """Return ``value`` as plain dictionaries and lists for JSON and YAML."""
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return value


FrozenMapping = Annotated[
    Mapping[str, T], AfterValidator(to_frozen), PlainSerializer(to_plain, return_type=dict)
]
# A recipe removes an object by setting it to null.
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
FrozenValue = Annotated[Any, AfterValidator(to_frozen), PlainSerializer(to_plain)]
ComponentNode = FrozenMapping[Any]
Balance = Literal["layers", "layers_and_ends"]  # how stages share layers
Fraction = Annotated[float, Field(gt=0, lt=1)]
WordTuple = Annotated[tuple[str, ...], Field(strict=False)]
Places = Annotated[tuple[Place, ...], Field(strict=False)]
Seconds = Annotated[float, Field(gt=0)]

# Choose the member of a union by the form of the value, so pydantic reports only its errors.
SECTION, WORD = pydantic.Tag("(section)"), pydantic.Tag("(word)")
BY_FORM = pydantic.Discriminator(
    lambda value: SECTION.tag if isinstance(value, Mapping | BaseModel) else WORD.tag
)
OrNone = Annotated[Annotated[T, SECTION] | Annotated[Literal["none"], WORD], BY_FORM]


def sections_at(kind: type[BaseModel], location: Iterable[Any]) -> list[type[Section]]:
    """Return the section classes at the path ``location`` below ``kind``."""
    here: list[Any] = [kind]
    for step in location:
        here = [inner for annotation in here for inner in _inside(annotation, step)]
    return [kind for kind in here if _is_section(kind)]


@cache
def fields_of(section: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """Return the fields of a section by their YAML keys."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def names_place(kind: type[BaseModel], location: Sequence[Any]) -> bool:
    """Return whether the field at ``location`` names files or folders."""
    keys = list(location)
    while isinstance(keys[-1], int):  # an item of a list
        keys.pop()
    fields = [fields_of(section).get(keys[-1]) for section in sections_at(kind, keys[:-1])]
    return any(field and _is_place((field.annotation, *field.metadata)) for field in fields)


def _is_place(annotations: Iterable[Any]) -> bool:
    return any(
        isinstance(mark, NamesPlace)
        or _is_place(getattr(mark, "__metadata__", ()))
        or _is_place(get_args(mark))
        for mark in annotations
    )


def _inside(annotation: Any, step: Any) -> list[Any]:
    """Return the types one step down: of a section's field or of a container's items."""
    members = [argument for argument in get_args(annotation) if argument is not Ellipsis]
    if _is_section(annotation):
        members = [
            field.annotation for key, field in fields_of(annotation).items() if key == step
        ]
    return choices_of(members[-1]) if members else []


def choices_of(annotation: Any) -> list[Any]:
    """Return the members of a union, or the annotation itself."""
    if get_origin(annotation) is Annotated:
        return choices_of(get_args(annotation)[0])
    if get_origin(annotation) in {Union, UnionType}:
        return [member for choice in get_args(annotation) for member in choices_of(choice)]
    return [annotation]


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)
