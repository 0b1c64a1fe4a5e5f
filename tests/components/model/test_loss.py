"""Head and loss in blocks against torch's own, in double precision."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from components.model.loss import Readout, penalized_cross_entropy
from components.model.softmax import BLOCKS, Blocks
from tests.components.model.comparison import gradient_of, relative_difference


@pytest.fixture(params=[(1, 1), (4, 30), (256, 2**20)])
def _block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use blocks of one token, of a few tokens, and of all."""
    monkeypatch.setitem(BLOCKS, "cpu", Blocks(*request.param))


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight).flatten(0, -2).float(), targets.flatten())


def leaves(*shape: int, dim: int, rows: int, precision: torch.dtype) -> tuple[Tensor, Tensor]:
    hidden = torch.randn(*shape, dim, dtype=torch.float64).to(precision)
    weight = torch.randn(rows, dim, dtype=torch.float64).to(precision)
    return hidden.requires_grad_(), weight.requires_grad_()


@pytest.mark.usefixtures("_block")
@pytest.mark.parametrize("z_loss", [0.0, 0.3])
@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("kept", [0.6, 1.0])
def test_loss_and_gradients_equal_torch_for_every_block_size(cap, kept, z_loss):
    """The z-loss equals OLMo-core's cross_entropy_loss, divided by all targets."""
    hidden, weight = leaves(3, 7, dim=5, rows=13, precision=torch.float64)
    targets, counted = torch.randint(13, (3, 7)), torch.rand(3, 7) < kept
    logits = F.linear(hidden, weight).flatten(0, 1)
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
        found = Readout(cap=cap)(hidden, weight, None)
        torch.testing.assert_close(found.flatten(0, 1), logits)
    left = targets.masked_fill(~counted, -100).flatten()  # ignored by torch
    penalty = z_loss * logits.logsumexp(-1).square()[counted.flatten()].sum() / 21
    total = F.cross_entropy(logits, left, reduction="sum") / 21 + penalty
    expected = torch.autograd.grad(2.5 * total, (hidden, weight))
    which = counted if kept < 1 else None
    loss, reported = penalized_cross_entropy(
        hidden, weight, targets, counted=which, cap=cap, z_loss=z_loss
    )
    assert (reported is None) == (not z_loss)
    if reported is not None:
        assert not reported.requires_grad
        torch.testing.assert_close(reported, penalty)
    torch.testing.assert_close(loss, total)
    torch.testing.assert_close(torch.autograd.grad(2.5 * loss, (hidden, weight)), expected)


def test_a_z_loss_is_added_only_in_training() -> None:
    hidden, weight = leaves(3, 7, dim=5, rows=13, precision=torch.float64)
    targets, readout = torch.randint(13, (3, 7)), Readout(z_loss=0.3)
    entropy = penalized_cross_entropy(hidden, weight, targets)[0]
    trained = readout(hidden, weight, targets)
    assert readout.penalty is not None
    torch.testing.assert_close(trained - readout.penalty, entropy)
    assert torch.equal(readout.eval()(hidden, weight, targets), entropy)
    assert readout.penalty is None


def test_large_logits_neither_overflow_nor_vanish() -> None:
    hidden = torch.ones(1, 1, requires_grad=True)
    weight = torch.tensor([[1e4], [-1e4], [0.0]], requires_grad=True)
    loss = penalized_cross_entropy(hidden, weight, torch.tensor([1]))[0]
    torch.autograd.backward(loss)
    assert loss.item() == 2e4
    assert gradient_of(weight).tolist() == [[1.0], [-1.0], [0.0]]
    assert gradient_of(hidden).item() == 2e4


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_low_precision_is_as_exact_as_torch(precision, monkeypatch):
    monkeypatch.setitem(BLOCKS, "cpu", Blocks(least_tokens=64, chunk_elements=2**10))
    hidden, weight = leaves(512, dim=32, rows=101, precision=precision)
    targets = torch.randint(101, (512,), generator=torch.Generator().manual_seed(1))
    wide = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    exact_loss = F.cross_entropy(F.linear(*wide), targets)
    exact = torch.autograd.grad(exact_loss, wide)
    theirs = torch.autograd.grad(plain(hidden, weight, targets), (hidden, weight))
    loss = penalized_cross_entropy(hidden, weight, targets)[0]
    ours = torch.autograd.grad(loss, (hidden, weight))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact_loss.item(), rel=1e-3)
    for one, other, reference in zip(ours, theirs, exact, strict=True):
        assert one.dtype == precision
        limit = max(1.5 * relative_difference(other.double(), reference), 2e-3)
        assert relative_difference(one.double(), reference) < limit


def test_float16_gradients_survive_many_tokens_and_rows() -> None:
    """A probability divided by the number of tokens would be zero in float16."""
    hidden, weight = (
        part.detach() for part in leaves(2_048, dim=4, rows=4_096, precision=torch.float16)
    )
    hidden, weight = (0.1 * hidden).requires_grad_(), weight.requires_grad_()
    targets = torch.zeros(2_048, dtype=torch.int64)
    scaled = 4_096.0 * penalized_cross_entropy(hidden, weight, targets)[0]
    of_weight = torch.autograd.grad(scaled, weight)[0][1:].float()
    wide = weight.detach().float().requires_grad_()
    expected = torch.autograd.grad(4_096.0 * plain(hidden.float(), wide, targets), wide)[0][1:]
    assert relative_difference(of_weight, expected) < 0.02


def test_under_autocast_products_are_bfloat16_and_gradients_are_float32() -> None:
    hidden, weight = leaves(2, 9, dim=8, rows=13, precision=torch.float32)
    targets = torch.randint(13, (2, 9))
    with torch.autocast("cpu", torch.bfloat16):
        loss = penalized_cross_entropy(hidden, weight, targets)[0]
        expected = plain(hidden, weight, targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=1e-3, atol=0)
    ours = torch.autograd.grad(loss, (hidden, weight))
    theirs = torch.autograd.grad(expected, (hidden, weight))
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == torch.float32
        assert relative_difference(one, other) < 0.02


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_side_gets_no_gradient_and_changes_none(frozen: int) -> None:
    sides = leaves(7, dim=5, rows=13, precision=torch.float64)
    targets = torch.randint(13, (7,))
    expected = torch.autograd.grad(penalized_cross_entropy(*sides, targets)[0], sides)
    sides[frozen].requires_grad_(False)
    torch.autograd.backward(penalized_cross_entropy(*sides, targets)[0])
    assert sides[frozen].grad is None
    torch.testing.assert_close(sides[1 - frozen].grad, expected[1 - frozen])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_the_loss_is_the_same_and_leaves_no_graph(mode: Any) -> None:
    hidden, weight = leaves(7, dim=5, rows=13, precision=torch.float32)
    targets = torch.randint(13, (7,))
    with mode():
        loss = penalized_cross_entropy(hidden, weight, targets)[0]
    assert not loss.requires_grad
    assert loss.item() == penalized_cross_entropy(hidden, weight, targets)[0].item()


def test_a_second_differentiation_finds_the_same_or_is_refused_without_a_graph() -> None:
    hidden, weight = leaves(7, dim=5, rows=13, precision=torch.float32)
    loss = penalized_cross_entropy(hidden, weight, torch.randint(13, (7,)))[0]
    first = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
    again = torch.autograd.grad(loss, (hidden, weight))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    with pytest.raises(RuntimeError, match="differentiated before: compute it again"):
        torch.autograd.backward(loss)
