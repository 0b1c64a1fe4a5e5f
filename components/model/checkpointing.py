"""Activation checkpointing: forget inner activations, compute them again for the backward pass.

Poured over a built model by hooks, so parameters keep their names. Generators of random numbers
are put back before the second forward pass: dropout drops the same again.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from torch import nn

from components.errors import RecipeError
from components.torch_internals.autograd import checkpoint

# The parts of a layer, under the attributes that hold them.
_PARTS: Mapping[str, tuple[str, ...]] = {
    "attention": ("attention",),
    "mlp": ("mlp",),
    "norms": ("attention_norm", "mlp_norm"),
}


def checkpoint_activations(
    model: nn.Module, parts: Literal["none", "full"] | Sequence[str]
) -> None:
    """Keep only the inputs of whole layers (``full``), or of the named parts of each layer.

    Parts are ``attention``, ``mlp`` and ``norms``. Call it once, after the model is built or
    cut into stages, before ``fully_shard``.

    Raises:
        RecipeError: a part that no layer has, or one named twice.
    """
    if parts == "none":
        return
    names = [parts] if isinstance(parts, str) else list(parts)
    _check(names)
    for layer in cast("Any", model).layers.values():
        for module in recomputed_parts(layer, parts):
            checkpoint(module)


def recomputed_parts(
    layer: nn.Module, parts: Literal["none", "full"] | Sequence[str]
) -> list[nn.Module]:
    """List what of a layer is computed again under such a choice: the layer, or parts of it."""
    if parts == "none":
        return []
    if parts == "full":
        return [layer]
    return [getattr(layer, name) for part in parts for name in _PARTS[part]]


def _check(parts: Sequence[str]) -> None:
    known = ", ".join(_PARTS)
    for part in parts:
        if part not in _PARTS and parts != ["full"]:
            raise RecipeError(
                "parallelism.recompute",
                f"{part!r} is no part of a layer",
                f"use none, full, or some of {known}",
            )
        if parts.count(part) > 1:
            raise RecipeError(
                "parallelism.recompute", f"{part!r} is named twice", "name each part once"
            )
