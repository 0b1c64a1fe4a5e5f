from typing import Any

import pytest
import torch
from torch import Tensor, nn

from components.torch_internals import operators
from components.torch_internals.operators import in_backward


class Product(torch.autograd.Function):
    """Multiply, and record in ``passes`` what each backward pass detects."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, passes: list[Any]) -> Tensor:
        ctx.save_for_backward(left, right)
        ctx.passes = passes
        return left * right

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        left, right = ctx.saved_tensors
        wanted = tuple(operators.will_run(node) for node, _ in ctx.next_functions[:2])
        ctx.passes.append((in_backward(), operators.keeps_graph(), wanted))
        return upstream[0] * right, upstream[0] * left, None


@pytest.fixture
def sides() -> tuple[Tensor, Tensor]:
    return torch.tensor(2.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)


Sides = tuple[Tensor, Tensor]
apply: Any = Product.apply


def test_a_backward_pass_is_detected_with_the_graphs_retention(sides: Sides) -> None:
    passes: list[Any] = []
    product = apply(*sides, passes)
    assert not in_backward()
    product.backward(retain_graph=True)
    product.backward()
    assert not in_backward()
    assert [(runs, keeps) for runs, keeps, _ in passes] == [(True, True), (True, False)]


def test_requested_gradients_are_detected(sides: Sides) -> None:
    passes: list[Any] = []
    left, right = sides
    product = apply(left * 1.0, right * 1.0, passes)
    torch.autograd.grad(product, left, retain_graph=True)
    torch.autograd.grad(product, right, retain_graph=True)
    torch.autograd.grad(product, (left, right))
    assert [wanted for *_, wanted in passes] == [(True, False), (False, True), (True, True)]
    torch.autograd.grad(apply(left, right, passes), left)  # of a leaf
    assert passes[-1][2][0]


def test_a_checkpoint_is_detected_in_both_of_its_passes() -> None:
    module, seen = nn.Sequential(nn.Linear(4, 4)), list[bool]()
    module[0].register_forward_pre_hook(lambda *_: seen.append(operators.saves_through_hooks()))
    module(torch.ones(4)).sum().backward()
    operators.checkpoint(module)
    module(torch.ones(4)).sum().backward()
    assert seen == [False, True, True]
    assert not operators.saves_through_hooks()


def test_checkpointing_computes_twice_keeps_names_and_gives_the_same_gradients() -> None:
    torch.manual_seed(0)
    module, inputs = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(3, 4)
    names = [name for name, _ in module.named_parameters()]
    module(inputs).sum().backward()
    expected = [parameter.grad for parameter in module.parameters()]
    module.zero_grad()
    calls = []
    module[0].register_forward_hook(lambda *_: calls.append(in_backward()))
    operators.checkpoint(module)
    module(inputs).sum().backward()
    assert calls == [False, True]
    assert [name for name, _ in module.named_parameters()] == names
    for parameter, gradient in zip(module.parameters(), expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=0)
