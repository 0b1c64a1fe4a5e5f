"""The arithmetic of a mixture of experts: `loop` is the formula and the reference.

The other two sort the pairs (token, expert) by expert once. `grouped_products` asks the host
nothing: three grouped products do all experts. `sorted_products` multiplies expert by expert.
"""

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, split_with_sizes

from components.model.kept import kept, passing_on
from components.model.mlp import Activation
from components.model.products import asked_once
from components.torch_internals.operators import has_kernel


class Matrices(NamedTuple):
    """The weights of all experts, or of one of ``parts`` equal parts; without a gate plain.

    Pairs whose expert is not here (numbers below 0, above the last one) add nothing. Of a whole
    one, rows of the number after the last are padding: they come last, and are in no product.
    """

    gate: Float[Tensor, "experts ffn dim"] | None
    up: Float[Tensor, "experts ffn dim"]
    down: Float[Tensor, "experts dim ffn"]
    activation: Activation
    parts: int = 1


def loop(
    tokens: Float[Tensor, "tokens dim"],
    weights: Float[Tensor, "tokens top_k"],
    experts: Int[Tensor, "tokens top_k"],
    matrices: Matrices,
) -> Float[Tensor, "tokens dim"]:
    """Mix the experts one after the other, as the formula reads."""
    mixed = torch.zeros_like(tokens, dtype=_accumulation_dtype(tokens))
    # Not by index, whose gradient is of the whole stack, once for each expert.
    gates = repeat(None) if matrices.gate is None else matrices.gate.unbind()
    stacks = zip(gates, matrices.up.unbind(), matrices.down.unbind(), strict=False)
    for expert, (gate, up, down) in enumerate(stacks):
        rows, places = pairs_of(experts, expert, num_experts=len(matrices.up))
        given = tokens[rows]
        widened = given @ up.T
        if gate is None:
            inner = matrices.activation(widened)
        else:
            inner = matrices.activation(given @ gate.T) * widened
        outputs = (inner @ down.T) * weights[rows, places, None]
        mixed = mixed.index_add(0, rows, outputs.to(mixed.dtype))
    return mixed


def pairs_of(
    experts: Int[Tensor, "tokens top_k"], expert: int, *, num_experts: int
) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
    """Find an expert's tokens, and where it stands among the ``top_k`` of each; the host waits.

    A dry run, which has no routing, takes equal shares of ``num_experts`` instead.
    """
    rows, places = (experts == expert).nonzero(as_tuple=True)
    return rows, places


def grouped_products(
    tokens: Tensor, weights: Tensor, experts: Tensor, matrices: Matrices
) -> Tensor:
    """Mix all experts at once over the pairs sorted by expert."""
    order = Order.of(experts, num_experts=len(matrices.up), parts=matrices.parts)
    if not len(order.pairs):  # a grouped product wants a row
        return loop(tokens, weights, experts, matrices)
    ends = order.counts.cumsum(0, dtype=torch.int32)

    def multiply(rows: Tensor, *stacks: Tensor) -> Sequence[Tensor]:
        return [F.grouped_mm(rows, stack.mT, offs=ends) for stack in stacks]

    return _mix_sorted(tokens, weights, matrices, order, multiply)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # it reads counts on the host
def sorted_products(
    tokens: Tensor, weights: Tensor, experts: Tensor, matrices: Matrices
) -> Tensor:
    """Mix the experts one after the other over the pairs sorted by expert."""
    order = Order.of(experts, num_experts=len(matrices.up), parts=matrices.parts)
    order = order._replace(is_whole=False)  # sums in the order of experts
    counts = on_host(order.counts, even=dealt(len(order.pairs), len(matrices.up)))

    def multiply(rows: Tensor, *stacks: Tensor) -> Sequence[Tensor]:
        apply: Callable[..., tuple[Tensor, ...]] = _ExpertProducts.apply
        return apply(rows, counts, *stacks)

    return _mix_sorted(tokens, weights, matrices, order, multiply)


def _mix_sorted(
    tokens: Tensor,
    weights: Tensor,
    matrices: Matrices,
    order: "Order",
    multiply: Callable[..., Sequence[Tensor]],
) -> Tensor:
    """Mix by products over sorted pairs; the weight goes in where a row is narrower."""
    gate, up, down, activation, _ = matrices
    widened = multiply(spread(tokens, order), *([up] if gate is None else [gate, up]))
    inner = activation(widened[0])
    if gate is not None:
        inner = inner * widened[1]
    inner = inner * weights.flatten().index_select(0, order.pairs)[:, None]
    return summed(passing_on(multiply(inner, down)[0]), order, len(tokens))


class _ExpertProducts(torch.autograd.Function):
    """Multiply each expert's rows by its matrix of every stack: ``rows @ matrix.T``."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, counts: list[int], *stacks: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(rows, *stacks)
        ctx.counts = counts
        return kept(lambda: _one_by_one(rows, counts, stacks))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        rows, *stacks = ctx.saved_tensors
        counts, of_rows = ctx.counts, torch.zeros_like(rows)
        of_stacks = [torch.empty_like(stack) for stack in stacks]
        for gradient, stack, of_stack in zip(upstream, stacks, of_stacks, strict=True):
            parts = (_split(each, counts) for each in (gradient, rows, of_rows))
            for part, given, of_part, matrix, of_matrix in zip(
                *parts, stack, of_stack, strict=True
            ):
                # An expert without rows gets zeros: a product over no terms.
                torch.mm(part.T, given, out=of_matrix)
                of_part.addmm_(part, matrix)
        return of_rows, None, *of_stacks


def _one_by_one(
    rows: Tensor, counts: list[int], stacks: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    results = tuple(rows.new_empty(len(rows), stack.shape[1]) for stack in stacks)
    for stack, result in zip(stacks, results, strict=True):
        parts = _split(rows, counts), _split(result, counts)
        for part, of_part, matrix in zip(*parts, stack.mT, strict=True):
            torch.mm(part, matrix, out=of_part)
    return results


def _split(rows: Tensor, counts: list[int]) -> tuple[Tensor, ...]:
    return split_with_sizes(rows[: sum(counts)], counts)  # what pads them comes last


@asked_once
def has_grouped_kernel(device_type: str) -> bool:
    """Whether torch multiplies all experts at once there.

    Builds for Intel GPUs had no such kernel up to 2.14 (github.com/pytorch/pytorch, 195428):
    torch then multiplies one expert after the other and asks the host before each product. On
    AMD's it does so unless told otherwise (pull request 171140, in 2.10).
    """
    if device_type == "xpu":
        return has_kernel("aten::_grouped_mm", device_type)
    return device_type == "cuda" and not torch.version.hip


class Order(NamedTuple):
    """The pairs (token, place) sorted by expert, as indices into the flattened choice."""

    pairs: Int[Tensor, "pairs"]
    tokens: Int[Tensor, "pairs"]
    counts: Int[Tensor, "experts"]
    is_whole: bool  # every pair is here
    places: Int[Tensor, "every_pair"] | None = None  # of each pair's row, if rows are padded

    @staticmethod
    def of(experts: Int[Tensor, "tokens top_k"], *, num_experts: int, parts: int) -> "Order":
        """Sort; of several ``parts`` of the experts keep the pairs of this one."""
        flat = experts.flatten()
        if parts > 1:
            flat = flat.where((flat >= 0) & (flat < num_experts), num_experts)
        # Stable: an expert reads its tokens in rising order, and sums keep theirs.
        pairs = flat.sort(stable=True).indices
        # Not `bincount`, whose shape depends on data.
        counts = flat.new_zeros(num_experts + 1).scatter_add_(0, flat, torch.ones_like(flat))
        counts = counts[:num_experts]
        if parts > 1:
            (here,) = on_host(counts.sum()[None], even=dealt(len(pairs), parts)[:1])
            pairs = pairs[:here]
        return Order(pairs, pairs // experts.shape[1], counts, parts == 1)


def spread(tokens: Float[Tensor, "tokens dim"], order: Order) -> Float[Tensor, "pairs dim"]:
    """Give each pair its token's row."""
    apply: Callable[..., Tensor] = _Spread.apply
    return apply(tokens, order)


def summed(rows: Float[Tensor, "pairs dim"], order: Order, num_tokens: int) -> Tensor:
    """Sum the rows of each token's pairs, in float32 or finer: (tokens, dim)."""
    apply: Callable[..., Tensor] = _Reduce.apply
    return apply(rows, order, num_tokens)


def on_host(counts: Int[Tensor, "numbers"], *, even: Sequence[int]) -> list[int]:
    """Read counts, which are ``even`` where the load is: so a rehearsal answers instead."""
    return cast("list[int]", counts.tolist())


def dealt(total: int, among: int) -> list[int]:
    """Give each of ``among`` equally many, the first ones one more where some are left."""
    each, left = divmod(total, among)
    return [each + (place < left) for place in range(among)]


class _Spread(torch.autograd.Function):
    """`spread`, whose adjoint is `summed`: gathers both, no scatter."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Order) -> Tensor:
        ctx.order, ctx.num_tokens = order, len(rows)
        return rows.index_select(0, order.tokens)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        sums = _sum_pairs(upstream[0], ctx.order, ctx.num_tokens)
        return sums.to(upstream[0].dtype), None


class _Reduce(torch.autograd.Function):
    """`summed`, whose adjoint is `spread`."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Order, num_tokens: int) -> Tensor:
        ctx.order, ctx.dtype = order, rows.dtype
        return _sum_pairs(rows, order, num_tokens)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        return upstream[0].to(ctx.dtype).index_select(0, ctx.order.tokens), None, None


def _sum_pairs(rows: Tensor, order: Order, num_tokens: int) -> Tensor:
    if not order.is_whole:
        sums = rows.new_zeros(num_tokens, rows.shape[1], dtype=_accumulation_dtype(rows))
        return sums.index_add_(0, order.tokens, rows.to(sums.dtype))
    position = order.places
    if position is None:
        position = torch.empty_like(order.pairs)
        position[order.pairs] = torch.arange(len(position), device=position.device)
    per_token = rows.index_select(0, position).view(num_tokens, -1, rows.shape[1])
    return per_token.sum(1, dtype=_accumulation_dtype(rows))


def _accumulation_dtype(rows: Tensor) -> torch.dtype:
    return torch.promote_types(rows.dtype, torch.float32)
