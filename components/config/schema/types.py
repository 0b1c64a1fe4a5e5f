"""Schema types: the base of every section, frozen mappings and lists, errors of unions.

Of a union pydantic tries every member and reports the failures of all, each under the member's
name, which no user has ever written.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer

from components.ranges import Count as Count

T = TypeVar("T")


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
FrozenValue = Annotated[Any, AfterValidator(freeze), PlainSerializer(thaw)]
Node = FrozenMapping[Any]


Fraction = Annotated[float, Field(gt=0, lt=1)]


class Section(BaseModel):
    """Strict, frozen, and closed: an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Location = tuple[int | str, ...]


def of_what_was_meant(errors: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Keep, of a union of a word and a section, the errors of what the value looks like."""
    names = {kind.__name__ for kind in _kinds(Section)}
    was_section = {
        error["loc"][:-1]: isinstance(error["input"], Mapping)
        for error in errors
        if _is_word(error["loc"][-1:])
    }
    kept = []
    for error in errors:
        location, in_section = error["loc"], True
        place = next((location[:i] for i, step in enumerate(location) if step in names), None)
        if place is None and _is_word(location[-1:]):
            place, in_section = location[:-1], False
        if place is None or not _is_union(place, was_section, errors, names):
            kept.append(dict(error))
        elif was_section[place] == in_section:
            kept.append({**error, "loc": (*place, *location[len(place) + 1 :])})
    return kept if len(kept) == len(errors) else of_what_was_meant(kept)  # unions in unions


def _is_word(end: Location) -> bool:
    return bool(end) and str(end[0]).startswith("literal[")


def _is_union(
    place: Location,
    words: Container[Location],
    errors: Sequence[Mapping[str, Any]],
    names: Container[str],
) -> bool:
    """Whether a word and a section may be here; numbers and lists keep their own messages."""
    inside = [error["loc"] for error in errors if error["loc"][: len(place)] == place]
    return place in words and any(
        step in names for location in inside for step in location[len(place) :][:1]
    )


def _kinds(kind: type[Section]) -> Iterator[type[Section]]:
    for child in kind.__subclasses__():
        yield child
        yield from _kinds(child)
