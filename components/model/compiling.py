"""Layers through torch's compiler: what lies between the products becomes a few kernels.

Only a layer's own computation is compiled, once for all layers of one shape: how long it takes
does not depend on the depth. What is hung on a layer stays outside: shards that are gathered,
activations computed again, seeds of dropout. So do experts over several ranks, whose exchanges
are as long as the routing makes them; experts of one place are part of the graph, however the
tokens fall on them.
"""

import os
import shutil
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import nn

from components.errors import RecipeError
from components.model.moe import expert_layers, forgets_repetitions
from components.torch_internals.autograd import has_forward_hooks

if TYPE_CHECKING:
    from collections.abc import Callable

# Dropout draws what it would without a compiler.
_OPTIONS: dict[str, Any] = {"fallback_random": True}


def compile_layers(model: nn.Module, parts: Literal["none", "layers"]) -> None:
    """Compile each layer when it is first called; shapes are those of the first call.

    Raises:
        RecipeError: there is no C++ compiler, without which torch's has no kernels.
    """
    if parts == "none":
        return
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise RecipeError(
            "parallelism.compile",
            f"layers, but this machine has no {compiler}",
            "load a compiler, name it in CXX, or set parallelism.compile=none",
        )
    for layer in cast("Any", model).layers.values():
        mixtures = expert_layers(layer)
        for experts in mixtures:
            _leave_out(experts)
        forward = torch.compile(layer.forward, dynamic=False, options=_OPTIONS)
        layer.forward = forgets_repetitions(forward, mixtures) if mixtures else forward


def _leave_out(experts: Any) -> None:
    """Keep out of the graph experts on which something hangs, and the formula's loop."""
    disable: Callable[..., Any] = torch.compiler.disable
    if has_forward_hooks(experts) or experts.mixture.path == "loop":
        experts.forward = disable(experts.forward)
