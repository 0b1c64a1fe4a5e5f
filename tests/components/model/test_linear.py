"""Products of oneDNN against torch's in double precision, and cases without oneDNN."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.utils.flop_counter import FlopCounterMode

from components.model import linear as linear_module
from components.model.linear import (
    SLICE_ROWS,
    Linear,
    add_product,
    adds_wide,
    apply_linear,
    goes_to_onednn,
    multiply_matrices,
    product_into,
)
from tests.components.model.comparison import relative_difference

# Sums of a few hundred float32 products in any order.
TOLERANCE = 2e-6
needs_kernels = pytest.mark.skipif(  # other processors do not use oneDNN
    not goes_to_onednn(torch.ones(1, 1), torch.ones(1, 1)),
    reason="oneDNN is requested for products on processors with AVX-512",
)


def wide_and_leaf(*shape: int) -> tuple[Tensor, Tensor]:
    wide = torch.randn(*shape, dtype=torch.float64)
    return wide.requires_grad_(), wide.detach().float().requires_grad_()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Draw fixed numbers, because a sum near 0 has few exact digits."""
    torch.manual_seed(0)


def assert_close(ours: Tensor, exact: Tensor) -> None:
    assert ours.shape == exact.shape
    assert relative_difference(ours.double(), exact) < TOLERANCE


@pytest.mark.parametrize("batch", [(7,), (3, 5), (2, 3, 4)])
@pytest.mark.parametrize(("depth", "rows"), [(6, 31), (31, 6), (128, 1)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_map_and_its_gradients_equal_torchs(batch, depth, rows, with_bias):
    sides = [wide_and_leaf(*batch, depth), wide_and_leaf(rows, depth)]
    sides += [wide_and_leaf(rows)] if with_bias else []
    exact, ours = zip(*sides, strict=True)
    expected, mapped = F.linear(*exact), apply_linear(*ours)
    assert_close(mapped, expected)
    upstream = torch.randn_like(expected)
    gradients = torch.autograd.grad(mapped, ours, upstream.float())
    for one, other in zip(
        gradients, torch.autograd.grad(expected, exact, upstream), strict=True
    ):
        assert_close(one, other)
        assert one.is_contiguous()


@pytest.mark.parametrize("stride", ["columns", "every second", "transposed"])
def test_strided_operands_and_gradients_change_no_result(stride: str) -> None:
    def strided(tensor: Tensor) -> Tensor:
        if stride == "transposed":
            return tensor.T.contiguous().T
        return tensor[:, :9] if stride == "columns" else tensor[:, ::2]

    exact, ours = zip(wide_and_leaf(8, 18), wide_and_leaf(5, 18), strict=True)
    expected, mapped = (apply_linear(*map(strided, sides)) for sides in (exact, ours))
    assert_close(mapped, expected)
    # The gradient of a sum is one number with strides of zero.
    gradients = torch.autograd.grad(mapped.sum(), ours)
    for one, other in zip(gradients, torch.autograd.grad(expected.sum(), exact), strict=True):
        assert_close(one, other)
    assert_close(
        multiply_matrices(strided(ours[0]).detach(), strided(ours[1]).detach().T),
        expected.detach(),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_product_is_written_into_its_rows_alone(dtype: torch.dtype) -> None:
    place = torch.zeros(6, 5, dtype=dtype)
    left, right = torch.randn(3, 4, dtype=dtype), torch.randn(4, 5, dtype=dtype)
    product_into(place[2:5], left, right)
    assert_close(place[2:5], left.double() @ right.double())
    assert not place[:2].any()
    assert not place[5:].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_narrow_products_are_added_to_a_wide_sum_in_slices(dtype):
    total = torch.randn(SLICE_ROWS + 3, 5)
    left, right = torch.randn(4, SLICE_ROWS + 3).to(dtype).T, torch.randn(4, 5).to(dtype)
    expected = total.double() + left.double() @ right.double()
    add_product(total, left, right)
    assert relative_difference(total.double(), expected) < torch.finfo(dtype).eps


@pytest.mark.parametrize("has", [False, True])
def test_a_device_without_the_kernel_does_not_add_to_a_wide_sum(has, monkeypatch):
    """Early kernels refused it, and a CPU has no kernel."""
    monkeypatch.setattr(linear_module, "has_kernel", lambda operator, device: has)
    assert not adds_wide.__wrapped__("cpu", torch.bfloat16)


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_a_frozen_operand_gets_no_gradient(frozen: int) -> None:
    sides = [torch.randn(shape, requires_grad=True) for shape in ((3, 4), (5, 4), (5,))]
    sides[frozen].requires_grad_(False)
    torch.autograd.backward(apply_linear(*sides).sum())
    assert [side.grad is None for side in sides] == [index == frozen for index in range(3)]


def counted(backward: Callable[[], object]) -> int:
    """Count the FLOPs of products; torch's counter does not know oneDNN's."""

    def of_map(inputs: torch.Size, weight: torch.Size, *others: Any, **named: Any) -> int:
        return 2 * inputs.numel() * weight[0]

    formulas = {torch.ops.mkldnn._linear_pointwise: of_map}
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        backward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("requested", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_a_backward_pass_computes_only_the_requested_gradients(requested):
    sides = [torch.randn(shape, requires_grad=True) for shape in ((3, 7, 4), (5, 4), (5,))]
    flops, gradients = [], []
    for map_ in (F.linear, apply_linear):
        mapped = map_(sides[0] * 1, *sides[1:])
        wanted = [sides[place] for place in requested]
        take = partial(torch.autograd.grad, mapped.sum(), wanted, retain_graph=True)
        flops.append(counted(take))
        gradients.append(take())
    assert flops[0] == flops[1] == 2 * 21 * 4 * 5 * len({0, 1}.intersection(requested))
    for expected, found in zip(*gradients, strict=True):
        assert_close(found, expected.double())


def test_separate_passes_for_activations_and_weights_cost_as_much_as_one() -> None:
    """Torch's zero-bubble schedules compute them like this; the stage has three maps."""
    stage = torch.nn.Sequential(*(Linear(16, 16) for _ in range(3)))
    inputs = torch.randn(4, 16, requires_grad=True)
    together = counted(lambda: torch.autograd.backward(stage(inputs).sum())) - forward_flops(3)
    expected = [weight.grad for weight in stage.parameters()]
    stage.zero_grad()

    outputs = stage(inputs)
    groups: list[dict[str, Any]] = []

    def of_activations() -> None:
        found = stage_backward_input([outputs.sum()], None, [inputs], stage.parameters())
        groups.extend(found[1])

    first = counted(of_activations)
    second = counted(lambda: stage_backward_weight(stage.parameters(), groups))
    assert first == second == together // 2 == forward_flops(3)
    for weight, gradient in zip(stage.parameters(), expected, strict=True):
        assert weight.grad is not None
        assert gradient is not None
        assert torch.equal(weight.grad, gradient)


def forward_flops(maps: int) -> int:
    return maps * 2 * 4 * 16 * 16


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # the compiler warns of its own imports
@pytest.mark.usefixtures("_forget_what_was_compiled")
def test_a_compiled_map_equals_the_plain_one() -> None:
    layer = Linear(24, 40)
    compiled = torch.compile(layer, dynamic=False, fullgraph=True)
    inputs = torch.randn(2, 9, 24, requires_grad=True)
    sides = (inputs, *layer.parameters())
    plain, ours = layer(inputs), compiled(inputs)
    assert_close(ours, plain.double())
    upstream = torch.randn_like(plain)
    expected = torch.autograd.grad(plain, sides, upstream)
    for one, other in zip(torch.autograd.grad(ours, sides, upstream), expected, strict=True):
        assert_close(one, other.double())


@needs_kernels
def test_plain_float32_goes_to_onednn_forward_and_backward() -> None:
    inputs, weight = (torch.randn(3, 3, requires_grad=True) for _ in range(2))
    with torch.profiler.profile(acc_events=True) as running:
        torch.autograd.backward(apply_linear(inputs, weight).sum())
    calls = {one.key: one.count for one in running.key_averages()}
    assert calls["mkldnn::_linear_pointwise"] == 3
    assert "aten::mm" not in calls


def test_other_dtypes_autocast_and_fake_tensors_use_torchs_kernels() -> None:
    wide, plain = torch.randn(2, 2, dtype=torch.float64), torch.randn(2, 2)
    assert not goes_to_onednn(wide, wide)
    assert torch.equal(apply_linear(wide, wide), F.linear(wide, wide))
    assert not goes_to_onednn(plain.to("meta"), plain.to("meta"))
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(plain)
        assert not goes_to_onednn(fake, fake)
        assert apply_linear(fake, fake).shape == (2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert not goes_to_onednn(plain, plain)
        assert apply_linear(plain, plain).dtype == torch.bfloat16
