"""All paths of experts against the sum over all experts in double precision."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from components.model.expert_products import (
    Biases,
    Matrices,
    Order,
    _Reduce,
    _Spread,
    grouped_products,
    mix_in_loop,
    sorted_products,
)
from components.model.mlp import ACTIVATIONS

# `grouped_mm` needs rows of a multiple of 16 bytes, also in bfloat16.
DIM, FFN_DIM, NUM_EXPERTS, TOP_K = 16, 24, 6, 2
# Relative to the largest element. Sums of a few hundred products lose a digit or two.
TOLERANCES = {torch.float64: 1e-14, torch.float32: 2e-6, torch.bfloat16: 3e-2}
Mix = Callable[..., Tensor]
PATHS: dict[str, Mix] = {
    "loop": mix_in_loop,
    "sorted": sorted_products,
    "grouped": grouped_products,
}
# Torch has no grouped products in double precision.
KERNELS = [
    (path, dtype)
    for path in PATHS
    for dtype in TOLERANCES
    if (path, dtype) != ("grouped", torch.float64)
]
ROUTINGS = ["random", "no token", "one token", "all to one", "every expert"]


def choose(routing: str) -> Tensor:
    if routing == "every expert":
        return torch.arange(NUM_EXPERTS).expand(4, -1)
    if routing == "all to one":  # twice the same expert for each token
        return torch.tensor([[3, 3]]).expand(13, TOP_K)
    tokens = {"random": 37, "no token": 0, "one token": 1}[routing]
    generator = torch.Generator().manual_seed(tokens)
    return torch.rand(tokens, NUM_EXPERTS, generator=generator).topk(TOP_K).indices


def draw(
    chosen: Tensor, *, gated: bool, dtype: torch.dtype, biased: bool = False
) -> list[Tensor]:
    """Draw tokens, weights, stacks and the gradient of the result, rounded to ``dtype``.

    With biases, a stack of these follows each stack of matrices.
    """
    generator = torch.Generator().manual_seed(7)
    wide = (NUM_EXPERTS, FFN_DIM, DIM)
    stacks = [wide, wide, (NUM_EXPERTS, DIM, FFN_DIM)][0 if gated else 1 :]
    biases = [stack[:2] for stack in stacks] if biased else []
    tokens = len(chosen)
    shapes = [(tokens, DIM), tuple(chosen.shape), *stacks, *biases, (tokens, DIM)]
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [(each / each.shape[-1] ** 0.5).to(dtype) for each in drawn]


def differentiate(
    mix: Mix, chosen: Tensor, given: list[Tensor], activation: str = "silu"
) -> list[Tensor]:
    """Return the mixture and the gradients of all its inputs."""
    *learned, upstream = given
    tokens, weights, *stacks = learned = [each.clone().requires_grad_() for each in learned]
    wide = [stack for stack in stacks if stack.dim() == 3]
    gate = wide[0] if len(wide) == 3 else None
    matrices = Matrices(gate, wide[-2], wide[-1], ACTIVATIONS[activation])
    if biases := stacks[len(wide) :]:
        first = biases[0] if len(biases) == 3 else None
        matrices = matrices._replace(biases=Biases(first, biases[-2], biases[-1]))
    mixed = mix(tokens, weights, chosen, matrices)
    return [mixed, *torch.autograd.grad(mixed, learned, upstream.to(mixed.dtype))]


def reference(tokens: Tensor, weights: Tensor, experts: Tensor, matrices: Matrices) -> Tensor:
    """Apply all experts to all tokens, weighted by the routing."""
    gate, up, down, activation = matrices[:4]
    gate_bias, up_bias, down_bias = matrices.biases or (None, up.new_zeros(()), None)
    widened = torch.einsum("td,efd->tef", tokens, up) + up_bias
    if gate is None:
        inner = activation(widened)
    else:
        gates = torch.einsum("td,efd->tef", tokens, gate)
        inner = activation(gates if gate_bias is None else gates + gate_bias) * widened
    chose = torch.nn.functional.one_hot(experts, NUM_EXPERTS).to(tokens.dtype)
    shares = torch.einsum("tk,tke->te", weights, chose)
    mixed = torch.einsum("te,tef,edf->td", shares, inner, down)
    return mixed if down_bias is None else mixed + shares @ down_bias


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize(
    ("gated", "activation"), [(True, "silu"), (True, "gelu_tanh"), (False, "gelu")]
)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("path", "dtype"), KERNELS, ids=str)
def test_a_mixture_and_its_gradients_equal_the_sum_over_all_experts(
    path: str, routing: str, gated: bool, activation: str, biased: bool, dtype: torch.dtype
) -> None:
    chosen = choose(routing)
    given = draw(chosen, gated=gated, dtype=dtype, biased=biased)
    found = differentiate(PATHS[path], chosen, given, activation)
    expected = differentiate(reference, chosen, [each.double() for each in given], activation)
    assert found[0].dtype == torch.promote_types(dtype, torch.float32)  # wide sums
    assert len(found) == (3 + 3 * (1 + biased) if gated else 3 + 2 * (1 + biased))
    for one, exact in zip(found, expected, strict=True):
        assert one.shape == exact.shape
        if exact.numel():  # without tokens, gradients of matrices are zero
            gap = (one.double() - exact).abs().max()
            assert gap <= TOLERANCES[dtype] * exact.abs().max()
    if routing == "all to one":
        for gradient in found[3:]:  # of experts without tokens
            assert not torch.cat([gradient[:3], gradient[4:]]).any()


@pytest.mark.parametrize("first", [0, 2], ids=["whole", "part"])
@pytest.mark.parametrize("routing", ["random", "one token", "all to one"])
def test_spread_and_reduce_have_numerically_right_gradients(first: int, routing: str) -> None:
    """They surround the grouped products, which do not support double precision."""
    chosen = choose(routing) - first  # so that some experts are not here
    parts = 1 if first == 0 else NUM_EXPERTS // 2
    order = Order.sort_pairs(chosen, num_experts=NUM_EXPERTS // parts, parts=parts)
    rows = torch.randn(len(chosen), 3, dtype=torch.float64, requires_grad=True)
    sorted_rows = torch.randn(len(order.pairs), 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda given: _Spread.apply(given, order), rows)
    assert torch.autograd.gradcheck(
        lambda given: _Reduce.apply(given, order, len(chosen)), sorted_rows
    )
