"""Compilation of a built model's layers by torch.compile.

Only a layer's own computation is compiled, once for all layers of one shape. Outside the graph
are hooks, linear mixers, whose graph of all chunks would take minutes, and experts over several
ranks or without grouped products, because their shapes depend on the routing. Only training
uses graphs: held-out windows have any length.
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

    Raises RecipeError if this machine has no C++ compiler, or if this torch cannot compile
    float64. Later calls of the layers raise it as `compile_for` does.
    """
    if parts == "none":
        return
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        problem = f"layers, but this machine has no {compiler}"
        remedy = "load a compiler, set CXX to its path, or set parallelism.compile=none"
        raise RecipeError(_KEY, problem, remedy)
    _check_float64(model)
    chosen = Recomputation(recompute, every)
    for index, layer in collect_layers(model).items():
        here = chosen.of_layer(index)
        outside: set[Any] = {part for part in expert_layers(layer) if _stays_eager(part)}
        outside |= {layer.mixer} - {None}
        apart = {part for part in recomputed_parts(layer, here) if part is not layer}
        # A part is recomputed outside of its layer's graph, and both computations must run the
        # same graph. So the layer's graph ends before the part, and another starts after it.
        for part in apart - outside:
            _compile(part)
        for part in apart | outside:
            _end_graph_at(part)
        if here == "selective":
            _keep_by_operator(layer, outside)
        _compile(layer)
        layer.in_graph = True


def _keep_by_operator(layer: Any, outside: Collection[nn.Module]) -> None:
    """Apply selective recomputation in a layer's graph, or in the pieces of a broken graph.

    For attention that breaks the graph, the compiler chooses what to store.
    """
    for part in outside:
        recompute_selectively(part)
    pieces = [layer]
    whole = {part: part.is_fullgraph for part in layer.mixing_parts}
    if layer.mlp is not None:
        whole[layer.mlp] = layer.mlp not in outside
    if not all(whole.values()):
        pieces = [piece for piece, is_whole in whole.items() if is_whole]
    for piece in pieces:
        piece.forward = recomputed_in_graph(piece.forward)


def _check_float64(model: nn.Module) -> None:
    """Raise RecipeError for float64 on a CPU before torch 2.13 ("expected Double ...")."""
    weight = next(model.parameters())
    wide = weight.dtype == torch.float64 and weight.device.type == "cpu"
    if wide and release_of(torch.__version__) < _FLOAT64_SINCE:
        problem = f"layers, whose attention torch {torch.__version__} cannot compile in float64"
        remedy = f"set {_KEY}=none, precision.compute=float32, or use torch 2.13 or newer"
        raise RecipeError(_KEY, problem, remedy)


def _compile(module: nn.Module) -> None:
    forward = module.forward
    remedy = f"set {_KEY}=none, and report the recipe as a bug"
    compiled = compile_for(_KEY, forward, dynamic=False, remedy=remedy)
    if mixtures := expert_layers(module):
        compiled = forgets_repetitions(compiled, mixtures)

    def call_compiled(*given: Any) -> Any:
        return compiled(*given) if torch.is_grad_enabled() else forward(*given)

    module.forward = call_compiled


def _stays_eager(experts: Experts) -> bool:
    grouped = has_grouped_kernel(experts.up.weight.device.type)
    return type(experts.mixture) is not Mixture or experts.mixture.path == "loop" or not grouped


def _end_graph_at(module: nn.Module) -> None:
    """Break the graph at calls of ``module``, hooks included."""
    disable: Callable[..., Any] = torch.compiler.disable
    module.forward = disable(module.forward)
    module.register_forward_pre_hook(_in_no_graph, prepend=True)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # as torch has it
def _in_no_graph(module: nn.Module, inputs: Any) -> None:
    """Do nothing."""
