"""Compile the layers of a built model by torch.compile.

Only a layer's own computation is compiled, once for all layers of one shape; what is hung on it
stays outside, as do experts over several ranks or without grouped products, whose shapes depend
on the routing. Graphs are for training: held-out windows are of any length.
"""

import os
import shutil
from collections.abc import Callable, Collection
from typing import Any, Literal

import torch
from torch import nn

from components.distributed.activation_checkpoint import (
    Parts,
    Recomputation,
    recompute_selectively,
    recomputed_in_graph,
    recomputed_parts,
)
from components.errors import RecipeError
from components.model.expert_products import has_grouped_kernel
from components.model.layer import collect_layers
from components.model.moe import Experts, Mixture, expert_layers, forgets_repetitions
from components.model.torch_compile import compile_for
from components.versions import release_of

_KEY = "parallelism.compile"
_FLOAT64_SINCE = (2, 13)  # 2.10 and 2.11 were tried, 2.12 was not


def compile_layers(
    model: nn.Module, parts: Literal["none", "layers"], *, recompute: Parts, every: int = 1
) -> None:
    """Compile each layer at its first call in training, for the shapes of that call.

    Raises:
        RecipeError: no C++ compiler is here, or this torch cannot compile float64; later, as
            `compile_for` does.
    """
    if parts == "none":
        return
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        problem = f"layers, but this machine has no {compiler}"
        remedy = "load a compiler, name it in CXX, or set parallelism.compile=none"
        raise RecipeError(_KEY, problem, remedy)
    _check_float64(model)
    chosen = Recomputation(recompute, every)
    for index, layer in collect_layers(model).items():
        here = chosen.of_layer(index)
        outside = {experts for experts in expert_layers(layer) if _stays_eager(experts)}
        apart = {part for part in recomputed_parts(layer, here) if part is not layer}
        # Who computes a part again does so outside of its layer's graph: both times must run
        # the same one, so that the layer's ends before the part and goes on after it.
        for part in apart - outside:
            _compile(part)
        for part in apart | outside:
            _end_graph_at(part)
        if here == "selective":
            _keep_by_operator(layer, outside)
        _compile(layer)
        layer.in_graph = True


def _keep_by_operator(layer: Any, outside: Collection[nn.Module]) -> None:
    """Recompute within a layer's graph; of one that ends in its midst, within its pieces.

    Attention that ends a graph keeps what the compiler chooses.
    """
    for experts in outside:
        recompute_selectively(experts)
    pieces = [layer]
    if outside or not layer.attention.core.in_one_graph:
        whole = {layer.attention: layer.attention.core.in_one_graph, layer.mlp: not outside}
        pieces = [piece for piece, is_whole in whole.items() if is_whole]
    for piece in pieces:
        piece.forward = recomputed_in_graph(piece.forward)


def _check_float64(model: nn.Module) -> None:
    """Refuse float64 on a CPU before torch 2.13: "expected Double but found Float"."""
    weight = next(model.parameters())
    wide = weight.dtype == torch.float64 and weight.device.type == "cpu"
    if wide and release_of(torch.__version__) < _FLOAT64_SINCE:
        problem = f"layers, whose attention torch {torch.__version__} cannot compile in float64"
        remedy = f"set {_KEY}=none, precision.compute=float32, or use torch 2.13 or newer"
        raise RecipeError(_KEY, problem, remedy)


def _compile(module: nn.Module) -> None:
    forward = module.forward
    remedy = f"set {_KEY}=none, and tell us the recipe"
    compiled = compile_for(_KEY, forward, dynamic=False, remedy=remedy)
    if mixtures := expert_layers(module):
        compiled = forgets_repetitions(compiled, mixtures)

    def call(*given: Any) -> Any:
        return compiled(*given) if torch.is_grad_enabled() else forward(*given)

    module.forward = call


def _stays_eager(experts: Experts) -> bool:
    grouped = has_grouped_kernel(experts.up.weight.device.type)
    return type(experts.mixture) is not Mixture or experts.mixture.path == "loop" or not grouped


def _end_graph_at(module: nn.Module) -> None:
    """Let a graph end where ``module`` is called, hooks and all."""
    disable: Callable[..., Any] = torch.compiler.disable
    module.forward = disable(module.forward)
    module.register_forward_pre_hook(_in_no_graph, prepend=True)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # as torch has it
def _in_no_graph(module: nn.Module, inputs: Any) -> None:
    """Do nothing."""
