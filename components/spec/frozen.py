"""Mappings and lists of YAML as values that nobody can change later."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, PlainSerializer

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
