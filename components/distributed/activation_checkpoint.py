"""Recomputation (activation checkpointing): what the layers keep for their backward pass.

``full`` keeps the inputs of a layer, a list of parts those of each part. ``selective`` keeps by
operator what is dear to compute: results of products, attention, experts and collectives;
norms, activations, rotations, casts and the router's arithmetic are done again. Megatron's
(https://arxiv.org/abs/2205.05198, section 5) repeats attention, whose scores kernels do not
store any longer; torchtitan's ``op`` keeps every second product.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Literal, NamedTuple

from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from components.errors import RecipeError
from components.model.kept import Record
from components.model.layer import collect_layers
from components.torch_internals import operators, selective

KEY = "parallelism.recompute"
Parts = Literal["none", "selective", "full"] | Sequence[str]


class Recomputation(NamedTuple):
    """What is recomputed, and in which layers: those whose number ``every`` divides."""

    parts: Parts = "none"
    every: int = 1

    def of_layer(self, index: str) -> Parts:
        """Return what is recomputed in the layer of this number among all of the model."""
        return self.parts if int(index) % self.every == 0 else "none"


# The parts of a layer.
_PARTS: Mapping[str, Callable[[Any], list[nn.Module]]] = {
    "attention": lambda layer: [layer.attention],
    "mlp": lambda layer: [layer.mlp],
    "norms": lambda layer: layer.norms,
}


def checkpoint_activations(
    model: nn.Module, parts: Parts, *, every: int = 1, compiled: bool = False
) -> None:
    """Let every ``every``-th layer keep less, and compute it again in its backward pass.

    Layers count over the whole model, however it is cut. Hooks do it, so parameters keep their
    names; dropout drops the same again. Call it after the model is cut into stages, before
    ``fully_shard``. What is ``compiled`` keeps by operator in its own graph, not here.

    Raises:
        RecipeError: a part that no layer has, or one named twice.
    """
    _check_parts(parts)
    chosen = Recomputation(parts, every)
    for index, layer in collect_layers(model).items():
        if (here := chosen.of_layer(index)) == "selective":
            if not compiled:
                recompute_selectively(layer)
            continue
        for module in recomputed_parts(layer, here):
            operators.checkpoint(module)


def _check_parts(parts: Parts) -> None:
    for part in [] if isinstance(parts, str) else parts:
        if part not in _PARTS:
            remedy = f"use none, selective, full, or some of {', '.join(_PARTS)}"
            raise RecipeError(KEY, f"{part!r} is no part of a layer", remedy)
        if list(parts).count(part) > 1:
            raise RecipeError(KEY, f"{part!r} is named twice", "name each part once")


def recomputed_parts(layer: nn.Module, parts: Parts) -> list[nn.Module]:
    """List the modules of a layer that keep their inputs alone."""
    if isinstance(parts, str):
        return [layer] if parts == "full" else []
    return [module for part in parts for module in _PARTS[part](layer)]


def recompute_selectively(module: nn.Module) -> None:
    """Keep by operator what ``module`` computes; its hooks stay outside."""
    operators.checkpoint(module, context_fn=_keeping)


def recomputed_in_graph(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Keep by operator in the graph that torch's compiler makes of ``forward``."""
    selective.allow_side_effects_once()

    @wraps(forward)
    def call(*given: Any) -> Any:
        return checkpoint(forward, *given, use_reentrant=False, context_fn=_in_graph)

    return call


def _keeping() -> tuple[Any, Any]:
    caching, cached = _in_graph()
    record = Record(caching.storage)
    return record.written(caching), record.read(cached)


def _in_graph() -> tuple[Any, Any]:
    contexts: Callable[..., tuple[Any, Any]] = create_selective_checkpoint_contexts
    return contexts(policy_of)


def policy_of(ctx: Any, operator: Any, *given: Any, **named: Any) -> CheckpointPolicy:
    """Decide whether an operator's result is kept, as torch asks for each that it calls."""
    kept = operator in selective.KEPT and not _draws(operator, *given, **named)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _draws(operator: Any, *given: Any, **named: Any) -> bool:
    """Whether a kernel drops attention weights: left out, later masks would be others."""
    if operator not in selective.ATTENTION:
        return False
    return selective.dropped_fraction(operator, given, named) > 0
