"""Activation checkpointing (recomputation): what layers store for the backward pass.

``full`` stores the inputs of a layer, a list of parts the inputs of each part. If the list has
``norms``, the norm before a recomputed part is recomputed with it. ``selective`` stores the
results of expensive operators: products, attention, experts and collectives. It recomputes
norms, activations, rotations, casts and the router's arithmetic. Megatron recomputes attention
(https://arxiv.org/abs/2205.05198, section 5), but today's kernels store no scores.
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
from components.model.checkpoint_storage import SavedTensors
from components.model.layer import collect_layers
from components.torch_internals import operators, selective

KEY = "parallelism.recompute"
Parts = Literal["none", "selective", "full"] | Sequence[str]


class Recomputation(NamedTuple):
    """Recomputed parts, in the layers with a number that ``every`` divides."""

    parts: Parts = "none"
    every: int = 1

    def of_layer(self, index: str) -> Parts:
        """Return the recomputed parts of layer ``index``, counted over the whole model."""
        return self.parts if int(index) % self.every == 0 else "none"


# The parts of a layer.
_PARTS: Mapping[str, Callable[[Any], list[nn.Module]]] = {
    "attention": lambda layer: layer.mixing_parts,
    "mlp": lambda layer: [] if layer.mlp is None else [layer.mlp],
    "norms": lambda layer: layer.hidden_norms,
}


def checkpoint_activations(
    model: nn.Module, parts: Parts, *, every: int = 1, compiled: bool = False
) -> None:
    """Apply activation checkpointing to every ``every``-th layer.

    Layers count over the whole model. Hooks recompute, so parameters keep their names; dropout
    masks are the same again. Call this after the model is cut into stages and before
    ``fully_shard``. ``compiled`` layers do selective recomputation in their own graph, not
    here. Raises RecipeError if no layer has such a part, or if a part is named twice.
    """
    _check_parts(parts)
    chosen = Recomputation(parts, every)
    for index, layer in collect_layers(model).items():
        if (here := chosen.of_layer(index)) == "selective":
            if not compiled:
                recompute_selectively(layer)
            continue
        modules = recomputed_parts(layer, here)
        norms = [module for module in modules if module in layer.hidden_norms]
        parts_alone = [module for module in modules if module not in norms]
        for module in parts_alone:
            operators.checkpoint(module)
        moved = layer.move_norms(parts_alone) if norms else []
        for norm in norms:
            if norm not in moved:
                operators.checkpoint(norm)


def _check_parts(parts: Parts) -> None:
    for part in [] if isinstance(parts, str) else parts:
        if part not in _PARTS:
            remedy = f"use none, selective, full, or some of {', '.join(_PARTS)}"
            raise RecipeError(KEY, f"unknown part of a layer {part!r}", remedy)
        if list(parts).count(part) > 1:
            raise RecipeError(KEY, f"{part!r} is listed twice", "list each part once")


def recomputed_parts(layer: nn.Module, parts: Parts) -> list[nn.Module]:
    """Return the modules of a layer that keep only their inputs."""
    if isinstance(parts, str):
        return [layer] if parts == "full" else []
    return [module for part in parts for module in _PARTS[part](layer)]


def recompute_selectively(module: nn.Module) -> None:
    """Apply selective recomputation to ``module``, but not to its hooks."""
    operators.checkpoint(module, context_fn=_keeping)


def recomputed_in_graph(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Apply selective recomputation in the graph that torch's compiler makes of ``forward``."""
    selective.allow_side_effects_once()

    @wraps(forward)
    def call_forward(*given: Any) -> Any:
        return checkpoint(forward, *given, use_reentrant=False, context_fn=_in_graph)

    return call_forward


def _keeping() -> tuple[Any, Any]:
    caching, cached = _in_graph()
    record = SavedTensors(caching.storage)
    return record.record_results(caching), record.replay_results(cached)


def _in_graph() -> tuple[Any, Any]:
    contexts: Callable[..., tuple[Any, Any]] = create_selective_checkpoint_contexts
    return contexts(policy_of)


def policy_of(ctx: Any, operator: Any, *given: Any, **named: Any) -> CheckpointPolicy:
    """Return whether to keep an operator's result; torch calls this for each operator."""
    is_saved = operator in selective.SAVED_OPERATORS and not _draws(operator, *given, **named)
    return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE


def _draws(operator: Any, *given: Any, **named: Any) -> bool:
    """Return whether a kernel draws dropout: without its recomputation, later masks change."""
    if operator not in selective.ATTENTION:
        return False
    return selective.dropped_fraction(operator, given, named) > 0
