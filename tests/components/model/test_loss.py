"""The blockwise loss against torch's own, in double precision."""

import pytest
import torch
import torch.nn.functional as F

from components.model import loss as loss_module
from components.model.loss import cross_entropy


@pytest.fixture(params=[1, 40, 2**19])
def _block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go through the logits row by row, a few rows at a time, and at once."""
    monkeypatch.setattr(loss_module, "_CPU_BLOCK_ELEMENTS", request.param)


@pytest.mark.usefixtures("_block")
def test_loss_and_gradient_equal_torchs_whatever_the_block() -> None:
    ours = torch.randn(3, 7, 13, dtype=torch.float64, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    targets = torch.randint(13, (3, 7))
    loss = cross_entropy(ours, targets)
    expected = F.cross_entropy(theirs.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(loss, expected)
    torch.autograd.backward([2.5 * loss, 2.5 * expected])
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_the_gradient_is_that_of_finite_differences() -> None:
    logits = torch.randn(5, 9, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(9, (5,))
    assert torch.autograd.gradcheck(lambda values: cross_entropy(values, targets), (logits,))


def test_large_logits_neither_overflow_nor_vanish() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    loss = cross_entropy(logits, torch.tensor([1]))
    torch.autograd.backward(loss)
    assert loss.item() == 2e4
    assert logits.grad is not None
    assert logits.grad.tolist() == [[1.0, -1.0, 0.0]]


def test_bfloat16_logits_give_a_float32_loss_and_a_bfloat16_gradient() -> None:
    logits = torch.randn(64, 33).bfloat16().requires_grad_()
    targets = torch.randint(33, (64,))
    wide = logits.detach().float().requires_grad_()
    loss = cross_entropy(logits, targets)
    expected = F.cross_entropy(wide, targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected)
    torch.autograd.backward(loss)
    torch.autograd.backward(expected)
    assert logits.grad is not None
    assert wide.grad is not None
    assert torch.equal(logits.grad, wide.grad.bfloat16())
