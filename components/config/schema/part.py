"""Base class of part specifications, which declare the keys of a ``_target_`` node.

A specification is the only description of a part. It is a pydantic model without torch: its
fields are the keys of the node, with types, ranges and defaults. The constructor of the part,
parameter counts, the planner and conversion read it.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import ConfigDict

from components.config.schema.types import Section
from components.ranges import NamesPlace


class AbsentFeature:
    """Mark of a base class field that a part lacks unless the part declares the field."""


T = TypeVar("T")
# A base class declares the features of all its parts, so that parameter counts can read them.
# The default is the value for parts without the feature, which refuse the key.
Absent = Annotated[T, AbsentFeature()]


class PartSpec(Section):
    """Settings of one part; ``build`` constructs the class ``target`` from them."""

    # A recipe uses a third of the parts, so validators are built only when needed.
    model_config = ConfigDict(defer_build=True)
    target: ClassVar[str] = ""
    is_partial: ClassVar[bool] = False  # whether the node has ``_partial_: true``

    @property
    def class_name(self) -> str:
        """Name of the class without its module."""
        return self.target.rpartition(".")[2]

    @classmethod
    def list_keys(cls) -> list[str]:
        """List the keys that a node of this part may set."""
        return [
            name
            for name, field in cls.model_fields.items()
            if not any(isinstance(mark, AbsentFeature) for mark in field.metadata)
        ]

    @classmethod
    def names_place(cls, key: str) -> bool:
        """Return whether a key names a file or a folder."""
        field = cls.model_fields.get(key)
        return field is not None and any(isinstance(m, NamesPlace) for m in field.metadata)

    def build_part(self, **runtime: Any) -> Any:
        """Import the class and construct it with its settings as keyword arguments.

        ``runtime`` are arguments that no recipe sets, such as an optimizer's parameters.
        """
        settings = {key: _build_value(getattr(self, key)) for key in self.model_fields_set}
        return self.load_class()(**settings, **runtime)

    @classmethod
    def load_class(cls) -> Any:
        """Import the class that is built from these settings."""
        module, _, name = cls.target.rpartition(".")
        return getattr(import_module(module), name)


class ModelPartSpec(PartSpec):
    """Settings of a model part; the part's constructor takes the specification itself."""

    def build_part(self, **runtime: Any) -> Any:
        """Import the class and construct it with this specification.

        ``runtime`` are sizes that other parts of the model decide, such as ``dim``.
        """
        return self.load_class()(self, **runtime)


def _build_value(value: Any) -> Any:
    if isinstance(value, PartSpec):
        return value.build_part()
    if isinstance(value, Mapping):
        return {key: _build_value(item) for key, item in value.items()}
    return value
