"""The loss in 16 bits: exact sums over blocks and little memory traffic."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from typing_extensions import override

from components.model.loss import penalized_cross_entropy
from components.model.softmax import BLOCKS, Blocks, Softmax, log_sums
from components.torch_internals.operators import TorchDispatchMode, tree_leaves
from tests.components.model.comparison import gradient_of

TOKENS, ROWS, DIM = 1_024, 512, 64
# bfloat16 has 8 bits: a rounding is 0.17 %, and logits and gradients have one each.
MOST_ERROR = 0.003
MOST_BYTES_A_LOGIT = 12.0
NARROW = (torch.bfloat16, torch.float16)

# These read or write only a few selected numbers.
PICKS = {torch.ops.aten.gather.default, torch.ops.aten.scatter_.src}


class Traffic(TorchDispatchMode):
    """Sum the bytes that operators read and write, each input and output once."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and func not in PICKS:
            named = {**(kwargs or {})}
            named.pop("out", None)
            self.bytes += sum(map(size, tree_leaves((args, named, result))))
        return result


def size(leaf: object) -> int:
    return leaf.numel() * leaf.element_size() if isinstance(leaf, Tensor) else 0


def narrow_sides(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    hidden, weight = torch.randn(TOKENS, DIM), 0.1 * torch.randn(ROWS, DIM)
    return hidden.to(dtype), weight.to(dtype), torch.randint(ROWS, (TOKENS,))


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("blocks", [1, 4, 32])
def test_the_gradient_of_the_head_is_as_exact_with_many_blocks(precision, blocks, monkeypatch):
    monkeypatch.setitem(BLOCKS, "cpu", Blocks(TOKENS // blocks, chunk_elements=1))
    hidden, rounded, targets = narrow_sides(torch.bfloat16)
    weight = rounded.to(precision).requires_grad_()
    wide = rounded.double().requires_grad_()
    exact = torch.autograd.grad(F.cross_entropy(hidden.double() @ wide.T, targets), wide)[0]
    with torch.autocast("cpu", torch.bfloat16):
        loss = penalized_cross_entropy(hidden, weight, targets)[0]
    found = torch.autograd.grad(loss, weight)[0]
    assert found.dtype == precision
    assert (found - exact).norm() / exact.norm() < MOST_ERROR


@pytest.mark.parametrize("precision", [*NARROW, torch.float32])
def test_a_softmax_moves_few_bytes_a_logit(precision: torch.dtype) -> None:
    logits = torch.randn(64, 32_000).to(precision)
    with Traffic() as traffic:
        Softmax().to_gradient(logits, torch.randint(32_000, (64,)))
    # A float32 number has twice the bytes.
    most = MOST_BYTES_A_LOGIT * logits.element_size() / 2
    assert traffic.bytes / logits.numel() < most


@pytest.mark.parametrize("precision", NARROW)
def test_a_z_loss_of_16_bits_moves_at_most_31_more_bytes_a_logit(precision):
    logits = torch.randn(64, 32_000).to(precision)
    with Traffic() as traffic:
        Softmax().to_penalized_gradient(logits, torch.randint(32_000, (64,)), 1e-5)
    assert traffic.bytes / logits.numel() < 9.0 + 31.5


@pytest.mark.parametrize("precision", NARROW)
@pytest.mark.parametrize("scale", [0.01, 1.0, 12.0])
def test_a_log_sum_is_more_exact_than_the_rounded_probabilities(precision, scale):
    logits = (scale * torch.randn(256, 4_000)).to(precision)
    exact = logits.double().logsumexp(1, keepdim=True)
    largest, log_sum = log_sums(logits)
    rounding = torch.finfo(precision).eps / 2
    errors = (largest.double() + log_sum.double() - exact).abs()
    assert errors.max() < rounding
    if precision == torch.bfloat16:  # float16 underflows for most
        assert errors.square().mean().sqrt() < rounding / 8


def test_a_confident_tokens_loss_and_gradient_are_not_rounded_away() -> None:
    """Its probability rounds to 1 in bfloat16; the next number is 1 - 2**-8."""
    torch.manual_seed(0)
    logits = torch.randn(1, 101).bfloat16()
    logits[0, 3] = 12.0
    wide = logits.double().requires_grad_()
    exact = F.cross_entropy(wide, torch.tensor([3]))
    gradient = torch.autograd.grad(exact, wide)[0]
    loss = Softmax().to_gradient(logits, torch.tensor([3]))
    assert loss.item() == pytest.approx(exact.item(), abs=2**-11)
    assert logits[0, 3].item() == pytest.approx(gradient[0, 3].item(), abs=2**-11)
    assert logits[0, 3].item() < 0 < loss.item()


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_gradients_of_inputs_and_weights_may_be_computed_separately(precision):
    hidden, rows, targets = narrow_sides(precision)
    hidden, weight = hidden.requires_grad_(), nn.Parameter(rows)
    sides = hidden, weight
    expected = torch.autograd.grad(penalized_cross_entropy(*sides, targets)[0], sides)
    again = penalized_cross_entropy(*sides, targets)[0]
    of_inputs, groups = stage_backward_input([again], None, [hidden], iter([weight]))
    assert weight.grad is None
    stage_backward_weight(iter([weight]), groups)
    assert of_inputs[0] is not None
    assert torch.equal(of_inputs[0], expected[0])
    assert torch.equal(gradient_of(weight), expected[1])


def test_only_the_requested_gradient_is_allocated() -> None:
    hidden, weight, targets = narrow_sides(torch.float32)
    loss = penalized_cross_entropy(
        hidden.requires_grad_(), weight.requires_grad_() * 1, targets
    )[0]
    with Traffic() as traffic:
        torch.autograd.grad(loss, hidden, retain_graph=True)
    assert traffic.bytes < 3 * size(hidden)


@pytest.mark.parametrize(
    ("precision", "z_loss"), [(torch.bfloat16, 1e-4), (torch.float16, 1e-5)]
)
def test_a_z_loss_that_is_finer_than_16_bits_is_not_rounded_away(precision, z_loss):
    """It is smaller than the rounding of each probability, but changes their sum."""
    hidden, rows, targets = narrow_sides(precision)
    gradients = []
    for coefficient in (0.0, z_loss):
        weight = rows.float().requires_grad_()  # for a float32 gradient
        with torch.autocast("cpu", precision):
            loss, _ = penalized_cross_entropy(hidden, weight, targets, z_loss=coefficient)
        gradients.append(torch.autograd.grad(loss, weight)[0])
    wide = rows.double().requires_grad_()
    squares = (hidden.double() @ wide.T).logsumexp(-1).square().mean()
    (exact,) = torch.autograd.grad(z_loss * squares, wide)
    found = (gradients[1] - gradients[0]).double()
    # Rounding exceeds it in each entry, but its projection is exact.
    along = (found * exact).sum() / exact.square().sum()
    assert along.item() == pytest.approx(1.0, abs=0.1)
