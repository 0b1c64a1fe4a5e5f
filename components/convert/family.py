"""Choose the Hugging Face class that computes what a model computes.

Each family is a module of this package; a new one is a new file. The choice reads the features
of the model section, never a name.
"""

import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import components.convert as package
from components.convert.features import Features
from components.convert.links import TensorLink
from components.convert.needs import Need
from components.errors import RecipeError

ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
}


class HFFamily(Protocol):
    """One class of Hugging Face, beside our decoder."""

    model_type: str
    architecture: str
    prefix: str  # left out by some published folders
    no_weights: re.Pattern[str]  # buffers that some published folders hold

    def needs(self, features: Features) -> list[Need]:
        """List what the class takes for granted."""
        ...

    def shape(self, features: Features) -> dict[str, Any]:
        """Give the keys of ``config.json`` that change what is computed; no vocabulary."""
        ...

    def stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Read those keys from a ``config.json``, old spellings and absent keys included."""
        ...

    def training(self, features: Features, context_tokens: int) -> dict[str, Any]:
        """Give the other keys: what training or a cache reads."""
        ...

    def links(self, features: Features) -> Iterator[TensorLink]:
        """List all tensors of the class, with ours."""
        ...


@cache
def all_families() -> tuple[HFFamily, ...]:
    """Find the families among this package's modules: each calls its own ``FAMILY``."""
    modules = (
        importlib.import_module(f"{package.__name__}.{found.name}")
        for found in pkgutil.iter_modules(package.__path__)
    )
    return tuple(module.FAMILY for module in modules if hasattr(module, "FAMILY"))


def choose_family(features: Features) -> HFFamily:
    """Take the family that has every feature of the model.

    Raises:
        RecipeError: none has; what keeps the model from the nearest one is named.
    """
    unmet = {
        family: [need for need in family.needs(features) if not need.is_met]
        for family in all_families()
    }
    fewest = min(len(lacking) for lacking in unmet.values())
    nearest = [family for family, lacking in unmet.items() if len(lacking) == fewest]
    if fewest:
        reasons = "\n  ".join(_explain(family, unmet[family]) for family in nearest)
        raise RecipeError(
            unmet[nearest[0]][0].key,
            f"no class of Hugging Face has this; the nearest:\n  {reasons}",
            "the model can be trained here, but not exported",
        )
    return nearest[0]


def _explain(family: HFFamily, lacking: Sequence[Need]) -> str:
    reasons = ", ".join(f"{need.key} ({need.has})" for need in lacking)
    return f"{family.architecture} but for {reasons}"
