"""Matrix products of a mixture of experts: `mix_in_loop` is the formula and the reference.

The other two sort the (token, expert) pairs by expert once. `grouped_products` needs three
grouped products and no host synchronization. `sorted_products` multiplies expert by expert.
"""

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, split_with_sizes

from components.model.checkpoint_storage import compute_once, pass_through
from components.model.linear import trace_constant
from components.model.mlp import Activation, SwiGLU
from components.torch_internals.operators import has_kernel


class Biases(NamedTuple):
    """Biases of all experts' maps; ``gate`` None: no gating."""

    gate: Float[Tensor, "experts ffn"] | None
    up: Float[Tensor, "experts ffn"]
    down: Float[Tensor, "experts dim"]


class Matrices(NamedTuple):
    """Weights of all experts, or of one of ``parts`` equal parts; ``gate`` None: no gating.

    Pairs of other parts' experts (index below 0 or above the last) add nothing. If ``parts`` is
    1, an index one above the last marks padding rows at the end, which no product reads.
    """

    gate: Float[Tensor, "experts ffn dim"] | None
    up: Float[Tensor, "experts ffn dim"]
    down: Float[Tensor, "experts dim ffn"]
    activation: Activation
    swiglu: SwiGLU | None = None  # instead of ``activation(gate) * up``
    biases: Biases | None = None
    parts: int = 1

    def compute_inner(self, *projected: Tensor) -> Tensor:
        """Return the inner values of up projections, or of gate and up projections."""
        if len(projected) == 1:
            return self.activation(*projected)
        gate, up = projected
        return self.activation(gate) * up if self.swiglu is None else self.swiglu(gate, up)


def mix_in_loop(
    tokens: Float[Tensor, "tokens dim"],
    weights: Float[Tensor, "tokens top_k"],
    experts: Int[Tensor, "tokens top_k"],
    matrices: Matrices,
) -> Float[Tensor, "tokens dim"]:
    """Mix the experts one after the other, as in the formula."""
    mixed = torch.zeros_like(tokens, dtype=_accumulation_dtype(tokens))
    # Not by index: the gradient of an index is as large as the stack, once per expert.
    gates = repeat(None) if matrices.gate is None else matrices.gate.unbind()
    stacks = zip(gates, matrices.up.unbind(), matrices.down.unbind(), strict=False)
    for expert, (gate, up, down) in enumerate(stacks):
        rows, places = pairs_of(experts, expert, num_experts=len(matrices.up))
        inputs = tokens[rows]
        gate_bias, up_bias, down_bias = _biases_of(matrices, expert)
        projected = [F.linear(inputs, up, up_bias)]
        if gate is not None:
            projected.insert(0, F.linear(inputs, gate, gate_bias))
        inner = matrices.compute_inner(*projected)
        outputs = F.linear(inner, down, down_bias) * weights[rows, places, None]
        mixed = mixed.index_add(0, rows, outputs.to(mixed.dtype))
    return mixed


def _biases_of(matrices: Matrices, expert: int) -> Sequence[Tensor | None]:
    biases = matrices.biases or (None, None, None)
    return [bias if bias is None else bias[expert] for bias in biases]


def pairs_of(
    experts: Int[Tensor, "tokens top_k"], expert: int, *, num_experts: int
) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
    """Return the tokens of an expert and its place in their ``top_k``; the host waits.

    A dry run has no routing; it replaces this function by equal shares of ``num_experts``.
    """
    rows, places = (experts == expert).nonzero(as_tuple=True)
    return rows, places


def grouped_products(
    tokens: Tensor, weights: Tensor, experts: Tensor, matrices: Matrices
) -> Tensor:
    """Mix all experts with grouped products over the pairs sorted by expert."""
    order = Order.sort_pairs(experts, num_experts=len(matrices.up), parts=matrices.parts)
    if not len(order.pairs):  # a grouped product needs at least one row
        return mix_in_loop(tokens, weights, experts, matrices)
    ends = order.counts.cumsum(0, dtype=torch.int32)

    def multiply_grouped(rows: Tensor, *stacks: Tensor) -> Sequence[Tensor]:
        return [F.grouped_mm(rows, stack.mT, offs=ends) for stack in stacks]

    return _mix_sorted(tokens, weights, experts, matrices, order, multiply_grouped)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # reads counts on the host
def sorted_products(
    tokens: Tensor, weights: Tensor, experts: Tensor, matrices: Matrices
) -> Tensor:
    """Mix the experts one after the other over the pairs sorted by expert."""
    order = Order.sort_pairs(experts, num_experts=len(matrices.up), parts=matrices.parts)
    order = order._replace(is_whole=False)  # sum in the order of the experts
    counts = on_host(order.counts, even=split_evenly(len(order.pairs), len(matrices.up)))

    def multiply_sorted(rows: Tensor, *stacks: Tensor) -> Sequence[Tensor]:
        apply: Callable[..., tuple[Tensor, ...]] = _ExpertProducts.apply
        return apply(rows, counts, *stacks)

    return _mix_sorted(tokens, weights, experts, matrices, order, multiply_sorted)


def _mix_sorted(
    tokens: Tensor,
    weights: Tensor,
    experts: Tensor,
    matrices: Matrices,
    order: "Order",
    multiply: Callable[..., Sequence[Tensor]],
) -> Tensor:
    """Mix the experts over sorted pairs; routing weights multiply the rows of width ffn.

    With biases, they multiply the results.
    """
    gate, up, biases = matrices.gate, matrices.up, matrices.biases
    projected = multiply(
        gather_token_rows(tokens, order), *([up] if gate is None else [gate, up])
    )
    pair_weights = weights.flatten().index_select(0, order.pairs)[:, None]
    if biases is None:
        inner = matrices.compute_inner(*projected) * pair_weights
        return sum_rows(pass_through(multiply(inner, matrices.down)[0]), order, len(tokens))
    apply: Callable[..., Tensor] = _AddBias.apply
    ids = experts.flatten().index_select(0, order.pairs)
    added = [bias for bias in (biases.gate, biases.up) if bias is not None]
    inner = matrices.compute_inner(
        *(apply(rows, bias, ids) for rows, bias in zip(projected, added, strict=True))
    )
    outputs = apply(multiply(inner, matrices.down)[0], biases.down, ids)
    return sum_rows(outputs * pair_weights, order, len(tokens))


class _AddBias(torch.autograd.Function):
    """Add to each row the bias of its expert; padding rows get any bias.

    The gradient is a product, which sums in a fixed order and without a wait of the host.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, bias: Tensor, ids: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.num_experts = len(bias)
        return rows + bias.index_select(0, ids.clamp(max=len(bias) - 1))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        (ids,), gradient = ctx.saved_tensors, upstream[0]
        experts = torch.arange(ctx.num_experts, device=ids.device)
        return gradient, (experts[:, None] == ids).to(gradient.dtype) @ gradient, None


class _ExpertProducts(torch.autograd.Function):
    """Products of each expert's rows with its matrix in every stack: ``rows @ matrix.T``."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, counts: list[int], *stacks: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(rows, *stacks)
        ctx.counts = counts
        return compute_once(lambda: _multiply_in_loop(rows, counts, stacks))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        rows, *stacks = ctx.saved_tensors
        counts, rows_gradient = ctx.counts, torch.zeros_like(rows)
        stack_gradients = [torch.empty_like(stack) for stack in stacks]
        for gradient, stack, stack_gradient in zip(
            upstream, stacks, stack_gradients, strict=True
        ):
            parts = (_split(each, counts) for each in (gradient, rows, rows_gradient))
            for part_gradient, part_rows, part_rows_gradient, matrix, matrix_gradient in zip(
                *parts, stack, stack_gradient, strict=True
            ):
                # The product of an expert without rows is zero.
                torch.mm(part_gradient.T, part_rows, out=matrix_gradient)
                part_rows_gradient.addmm_(part_gradient, matrix)
        return rows_gradient, None, *stack_gradients


def _multiply_in_loop(
    rows: Tensor, counts: list[int], stacks: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    results = tuple(rows.new_empty(len(rows), stack.shape[1]) for stack in stacks)
    for stack, result in zip(stacks, results, strict=True):
        parts = _split(rows, counts), _split(result, counts)
        for part, part_result, matrix in zip(*parts, stack.mT, strict=True):
            torch.mm(part, matrix, out=part_result)
    return results


def _split(rows: Tensor, counts: list[int]) -> tuple[Tensor, ...]:
    return split_with_sizes(rows[: sum(counts)], counts)  # padding rows come last


@trace_constant
def has_grouped_kernel(device_type: str) -> bool:
    """Return whether torch has a grouped kernel for all experts on this device type.

    Without it torch multiplies expert by expert and synchronizes with the host before each
    product. Builds for Intel GPUs lacked it up to 2.14 (github.com/pytorch/pytorch, 195428);
    AMD builds do not use it by default (pull request 171140, in 2.10).
    """
    if device_type == "xpu":
        return has_kernel("aten::_grouped_mm", device_type)
    return device_type == "cuda" and not torch.version.hip


class Order(NamedTuple):
    """The (token, place) pairs sorted by expert, as indices into the flattened choice."""

    pairs: Int[Tensor, "pairs"]
    tokens: Int[Tensor, "pairs"]
    counts: Int[Tensor, "experts"]
    is_whole: bool  # contains every pair
    places: Int[Tensor, "every_pair"] | None = None  # row of each pair, if rows are padded

    @staticmethod
    def sort_pairs(
        experts: Int[Tensor, "tokens top_k"], *, num_experts: int, parts: int
    ) -> "Order":
        """Sort the pairs by expert; if ``parts`` > 1, keep only the pairs of this part."""
        flat = experts.flatten()
        if parts > 1:
            flat = flat.where((flat >= 0) & (flat < num_experts), num_experts)
        # Stable: an expert reads its tokens in ascending order; the order of sums is fixed.
        pairs = flat.sort(stable=True).indices
        # Not `bincount`: its output shape depends on data.
        counts = flat.new_zeros(num_experts + 1).scatter_add_(0, flat, torch.ones_like(flat))
        counts = counts[:num_experts]
        if parts > 1:
            (here,) = on_host(counts.sum()[None], even=split_evenly(len(pairs), parts)[:1])
            pairs = pairs[:here]
        return Order(pairs, pairs // experts.shape[1], counts, parts == 1)


def gather_token_rows(
    tokens: Float[Tensor, "tokens dim"], order: Order
) -> Float[Tensor, "pairs dim"]:
    """Gather each pair's token row."""
    apply: Callable[..., Tensor] = _Spread.apply
    return apply(tokens, order)


def sum_rows(rows: Float[Tensor, "pairs dim"], order: Order, num_tokens: int) -> Tensor:
    """Sum the rows of each token's pairs, in float32 or wider: (tokens, dim)."""
    apply: Callable[..., Tensor] = _Reduce.apply
    return apply(rows, order, num_tokens)


def on_host(counts: Int[Tensor, "numbers"], *, even: Sequence[int]) -> list[int]:
    """Read counts on the host; a dry run returns ``even``, the counts of an even load."""
    return cast("list[int]", counts.tolist())


def split_evenly(total: int, among: int) -> list[int]:
    """Split ``total`` evenly into ``among`` counts; the first ones get the remainder."""
    share, remainder = divmod(total, among)
    return [share + (place < remainder) for place in range(among)]


class _Spread(torch.autograd.Function):
    """`gather_token_rows`, with `sum_rows` as its adjoint: both gather, neither scatters."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Order) -> Tensor:
        ctx.order, ctx.num_tokens = order, len(rows)
        return rows.index_select(0, order.tokens)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        sums = _sum_pairs(upstream[0], ctx.order, ctx.num_tokens)
        return sums.to(upstream[0].dtype), None


class _Reduce(torch.autograd.Function):
    """`sum_rows`, with `gather_token_rows` as its adjoint."""

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
