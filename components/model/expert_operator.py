"""A mixture of experts in chunks as one operator, which torch's compiler takes as it is.

Chunks are cut by counts that the host reads, which a compiled graph cannot do. An operator is a
node of the graph, and its shapes do not depend on the counts: a layer stays one graph however
its tokens fall on the experts.
"""

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from components.model import expert_products
from components.model.expert_chunks import ChunkedGradients, chunks_of, mix_chunks
from components.model.expert_products import Matrices, Order, accumulator, dealt
from components.model.mlp import ACTIVATIONS

if TYPE_CHECKING:
    from collections.abc import Callable


def chunked_operator(
    tokens: Float[Tensor, "tokens dim"],
    weights: Float[Tensor, "tokens top_k"],
    experts: Int[Tensor, "tokens top_k"],
    matrices: Matrices,
) -> Float[Tensor, "tokens dim"]:
    """Do what `expert_chunks.chunked_products` does, of experts that are all in one place."""
    gate, up, down, activation, parts = matrices
    assert parts == 1, "experts over ranks are not compiled"
    order = Order.of(experts, num_experts=len(up), parts=parts)
    sorted_weights = weights.flatten().index_select(0, order.pairs)
    mix: Callable[..., tuple[Tensor, ...]] = _mix
    return mix(tokens, sorted_weights, gate, up, down, *order[:3], activation.name)[0]


@torch.library.custom_op("kochbuch::mix_experts", mutates_args=())
def _mix(
    tokens: Tensor,
    sorted_weights: Tensor,
    gate: Tensor | None,
    up: Tensor,
    down: Tensor,
    pairs: Tensor,
    token: Tensor,
    counts: Tensor,
    activation: str,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Mix; give the counts back on the host, where the backward pass wants them, too."""
    on_host = expert_products.on_host(counts, even=dealt(len(pairs), len(counts)))
    chunks = list(chunks_of(on_host, dim=tokens.shape[1]))
    given = (tokens, sorted_weights, gate, up, down, pairs, token)
    mixed, widened = mix_chunks(*given, chunks, ACTIVATIONS[activation])
    return mixed, torch.tensor(on_host), widened


@_mix.register_fake
def _mix_shapes(
    tokens: Tensor, sorted_weights: Tensor, gate: Tensor | None, up: Tensor, *others: Any
) -> tuple[Tensor, Tensor, list[Tensor]]:
    maps = 1 if gate is None else 2
    widened = [up.new_empty(len(sorted_weights), up.shape[1]) for _ in range(maps)]
    on_host = torch.empty(len(up), dtype=torch.int64, device="cpu")
    return accumulator(tokens), on_host, widened


@torch.library.custom_op("kochbuch::mix_experts_backward", mutates_args=())
def _mix_back(
    upstream: Tensor,
    tokens: Tensor,
    sorted_weights: Tensor,
    gate: Tensor | None,
    up: Tensor,
    down: Tensor,
    pairs: Tensor,
    token: Tensor,
    counts: Tensor,
    widened: list[Tensor],
    activation: str,
) -> list[Tensor]:
    """Return the gradients of tokens and sorted weights, of gate, if any, up and down."""
    saved = (tokens, sorted_weights, gate, up, down, pairs, token, *widened)
    gradients = ChunkedGradients(saved, ACTIVATIONS[activation])
    for chunk in chunks_of(counts.tolist(), dim=tokens.shape[1]):
        gradients.add(chunk, upstream)
    return gradients.result()


@_mix_back.register_fake
def _mix_back_shapes(
    upstream: Tensor,
    tokens: Tensor,
    sorted_weights: Tensor,
    gate: Tensor | None,
    up: Tensor,
    down: Tensor,
    *others: Any,
) -> list[Tensor]:
    given = (tokens, sorted_weights, gate, up, down)
    return [torch.empty_like(each) for each in given if each is not None]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    *given, _, ctx.activation = inputs
    _, counts, widened = output
    ctx.has_gate = given[2] is not None
    ctx.save_for_backward(*given, counts, *widened)


def _gradients(ctx: Any, upstream: Tensor, *others: Any) -> tuple[Tensor | None, ...]:
    *given, counts = ctx.saved_tensors[:8]
    widened = list(ctx.saved_tensors[8:])
    back: Callable[..., list[Tensor]] = _mix_back
    found: list[Tensor | None] = [*back(upstream, *given, counts, widened, ctx.activation)]
    if not ctx.has_gate:
        found.insert(2, None)
    return *found, None, None, None, None


_mix.register_autograd(_gradients, setup_context=_keep)
