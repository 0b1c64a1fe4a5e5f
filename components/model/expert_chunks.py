"""A mixture of experts in chunks: some experts' tokens at a time, while they are in the cache.

A chunk goes through all of its work before the next one begins, forward and backward; nothing
of size (pairs, dim) is stored. The backward pass is therefore written out.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from components.model import expert_products
from components.model.expert_products import Matrices, Order, accumulator, dealt
from components.model.mlp import Activation

# Rows of a chunk times their width. Measured on a CPU: smaller chunks lose more to calls than
# they win by lying closer; whole microbatches pass through memory again and again.
CHUNK_ELEMENTS = 2**18


def chunked_products(
    tokens: Float[Tensor, "tokens dim"],
    weights: Float[Tensor, "tokens top_k"],
    experts: Int[Tensor, "tokens top_k"],
    matrices: Matrices,
) -> Float[Tensor, "tokens dim"]:
    """Mix a few neighbouring experts at a time; the host reads the counts once."""
    gate, up, down, activation, parts = matrices
    order = Order.of(experts, num_experts=len(up), parts=parts)
    apply: Callable[..., Tensor] = _Chunked.apply
    return apply(tokens, weights, gate, up, down, order, activation)


class ExpertChunk(NamedTuple):
    """Some neighbouring experts with all their pairs."""

    experts: slice
    pairs: slice
    counts: list[int]

    def split(self, rows: Tensor) -> Sequence[Tensor]:
        """Give each expert's rows."""
        # Not `split`: a Python wrapper around the same, felt where experts have few rows.
        return torch.split_with_sizes(rows, self.counts)

    def split_transposed(self, rows: Tensor) -> Sequence[Tensor]:
        """Give each expert's rows as columns."""
        return torch.split_with_sizes(rows.T, self.counts, 1)

    def matrices(self, stack: Tensor) -> Sequence[Tensor]:
        """Give each expert's matrix."""
        return stack[self.experts].unbind()


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        weights: Tensor,
        gate: Tensor | None,
        up: Tensor,
        down: Tensor,
        order: Order,
        activation: Activation,
    ) -> Tensor:
        even = dealt(len(order.pairs), len(order.counts))
        counts = expert_products.on_host(order.counts, even=even)
        chunks = list(chunks_of(counts, dim=tokens.shape[1]))
        sorted_weights = weights.flatten()[order.pairs]
        given = (tokens, sorted_weights, gate, up, down, *order[:2])
        mixed, widened = mix_chunks(*given, chunks, activation)
        ctx.save_for_backward(*given, *widened)
        ctx.chunks, ctx.activation, ctx.weights_shape = chunks, activation, weights.shape
        return mixed

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ChunkedGradients(ctx.saved_tensors, ctx.activation)
        for chunk in ctx.chunks:
            gradients.add(chunk, upstream[0])
        of_tokens, of_sorted, *of_maps, of_down = gradients.result()
        # A pair whose expert is elsewhere has no gradient here.
        of_weights = of_sorted.new_zeros(ctx.weights_shape)
        of_weights.view(-1)[gradients.pairs] = of_sorted
        of_gate = None if len(of_maps) == 1 else of_maps[0]
        return of_tokens, of_weights, of_gate, of_maps[-1], of_down, None, None


def mix_chunks(
    tokens: Float[Tensor, "tokens dim"],
    sorted_weights: Float[Tensor, "pairs"],
    gate: Float[Tensor, "experts ffn dim"] | None,
    up: Float[Tensor, "experts ffn dim"],
    down: Float[Tensor, "experts dim ffn"],
    pairs: Int[Tensor, "pairs"],
    token: Int[Tensor, "pairs"],
    chunks: Sequence[ExpertChunk],
    activation: Activation,
) -> tuple[Float[Tensor, "tokens dim"], list[Float[Tensor, "pairs ffn"]]]:
    """Mix, and return what the maps into the experts made, for the backward pass."""
    maps = _maps(gate, up)
    widened = [up.new_empty(len(pairs), up.shape[1]) for _ in maps]
    mixed = accumulator(tokens)
    for chunk in chunks:
        rows = tokens.index_select(0, token[chunk.pairs])
        by_expert = chunk.split(rows)
        parts = [result[chunk.pairs] for result in widened]
        for weight, part in zip(maps, parts, strict=True):
            _multiply(by_expert, chunk.matrices(weight.mT), out=chunk.split(part))
        inner = activation.forward(parts[0])
        if gate is not None:
            inner.mul_(parts[1])
        inner.mul_(sorted_weights[chunk.pairs, None])
        # The rows have been read: the outputs take their place.
        _multiply(chunk.split(inner), chunk.matrices(down.mT), out=by_expert)
        mixed.index_add_(0, token[chunk.pairs], rows.to(mixed.dtype))
    return mixed, widened


class ChunkedGradients:
    """Collect the gradients of `mix_chunks`, of which ``saved`` are tensors given and made."""

    def __init__(self, saved: tuple[Any, ...], activation: Activation) -> None:
        tokens, self.weights, gate, up, down, self.pairs, self.token, *widened = saved
        self.tokens, self.down, self.maps, self.widened = tokens, down, _maps(gate, up), widened
        self.activation = activation
        self.of_tokens = accumulator(tokens)
        self.of_weights = torch.empty_like(self.weights)
        self.of_maps = [torch.empty_like(weight) for weight in self.maps]
        self.of_down = torch.empty_like(down)

    def add(self, chunk: ExpertChunk, upstream: Tensor) -> None:
        token, weight = self.token[chunk.pairs], self.weights[chunk.pairs, None]
        parts = [widened[chunk.pairs] for widened in self.widened]
        rows = self.tokens.index_select(0, token)
        outer = upstream.index_select(0, token).to(rows.dtype)
        activated = self.activation.forward(parts[0])
        inner = activated * parts[1] if len(parts) > 1 else activated
        of_inner = torch.empty_like(inner)
        _multiply(chunk.split(outer), chunk.matrices(self.down), out=chunk.split(of_inner))
        # <outer, down(inner)> is the weight's gradient, without the output at hand.
        torch.sum(of_inner * inner, 1, out=self.of_weights[chunk.pairs])
        # An expert without rows gets zeros: a product over no terms.
        weighted = chunk.split(inner * weight)
        _multiply(chunk.split_transposed(outer), weighted, out=chunk.matrices(self.of_down))
        of_parts = self._of_parts(of_inner.mul_(weight), activated, parts)
        by_expert = chunk.split(rows)
        for of_part, of_map in zip(of_parts, self.of_maps, strict=True):
            columns = chunk.split_transposed(of_part)
            _multiply(columns, by_expert, out=chunk.matrices(of_map))
        self._multiply_back(chunk, of_parts, out=by_expert)
        self.of_tokens.index_add_(0, token, rows.to(self.of_tokens.dtype))

    def _multiply_back(
        self, chunk: ExpertChunk, of_parts: list[Tensor], *, out: Sequence[Tensor]
    ) -> None:
        first, *others = zip(of_parts, self.maps, strict=True)
        _multiply(chunk.split(first[0]), chunk.matrices(first[1]), out=out)
        for of_part, weight in others:
            each = zip(out, chunk.split(of_part), chunk.matrices(weight), strict=True)
            for result, given, matrix in each:
                result.addmm_(given, matrix)

    def result(self) -> list[Tensor]:
        """List those of tokens and sorted weights, of gate, if there is one, up and down."""
        of_tokens = self.of_tokens.to(self.tokens.dtype)
        return [of_tokens, self.of_weights, *self.of_maps, self.of_down]

    def _of_parts(
        self, of_inner: Tensor, activated: Tensor, parts: list[Tensor]
    ) -> list[Tensor]:
        if len(parts) == 1:
            return [self.activation.backward(of_inner, parts[0])]
        of_up = of_inner * activated
        return [self.activation.backward(of_inner.mul_(parts[1]), parts[0]), of_up]


def _maps(gate: Tensor | None, up: Tensor) -> list[Tensor]:
    """List the maps into the experts; the activation is applied to the first one's result."""
    return [up] if gate is None else [gate, up]


def chunks_of(counts: list[int], *, dim: int) -> Iterator[ExpertChunk]:
    """Put neighbouring experts together while their rows of ``dim`` fit into the cache."""
    most = CHUNK_ELEMENTS // dim
    first, start = 0, 0
    for expert in range(1, len(counts) + 1):
        held = sum(counts[first:expert])
        if expert == len(counts) or held + counts[expert] > most:
            yield ExpertChunk(
                slice(first, expert), slice(start, start + held), counts[first:expert]
            )
            first, start = expert, start + held


def _multiply(
    rows: Sequence[Tensor], matrices: Sequence[Tensor], *, out: Sequence[Tensor]
) -> None:
    """Multiply each expert's rows by its matrix."""
    for given, matrix, result in zip(rows, matrices, out, strict=True):
        torch.mm(given, matrix, out=result)
