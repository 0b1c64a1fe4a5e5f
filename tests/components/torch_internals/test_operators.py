import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from components.torch_internals import operators
from components.torch_internals.operators import FakeTensorMode
from tests.components.torch_internals.seen import packets_of


def attended(causal: bool) -> Tensor:
    query = torch.randn(1, 2, 8, 16, requires_grad=True)
    return F.scaled_dot_product_attention(query, query, query, is_causal=causal)


@pytest.mark.parametrize(
    ("operator", "act"),
    [
        (operators.CPU_ATTENTION, lambda: attended(True)),
        (operators.CPU_ATTENTION_BACKWARD, lambda: attended(True).sum().backward()),
        (operators.CAST, lambda: torch.ones(2).to(torch.float64)),
        (operators.READ_NUMBER, lambda: torch.ones(1).item()),
        (
            operators.GROUPED_PRODUCT,
            lambda: F.grouped_mm(
                torch.ones(16, 16, dtype=torch.bfloat16),
                torch.ones(2, 16, 16, dtype=torch.bfloat16),
                offs=torch.tensor([8, 16], dtype=torch.int32),
            ),
        ),
    ],
)
def test_public_functions_call_the_operator(operator, act):
    assert operator in packets_of(act)


def test_gpu_attention_works_on_fake_tensors() -> None:
    with FakeTensorMode():
        query, mask = torch.empty(2, 4, 64, 32), torch.empty(2, 4, 64, 64)
        flash = operators.FLASH_ATTENTION(query, query, query, 0.0, True)
        efficient = operators.EFFICIENT_ATTENTION(query, query, query, mask, True, 0.0, False)
    assert flash[0].shape == efficient[0].shape == query.shape


@pytest.mark.skipif(operators.ONEDNN_LINEAR is None, reason="this build has no oneDNN")
def test_onednn_maps_as_torch_does() -> None:
    inputs, weight, bias = torch.randn(2, 3, 5), torch.randn(7, 5), torch.randn(7)
    for given in (bias, None):
        mapped = operators.linear_by_onednn(inputs, weight, given)
        torch.testing.assert_close(mapped, F.linear(inputs, weight, given))


def test_kernels_are_found_by_operator_and_device() -> None:
    assert operators.has_kernel("aten::mm", "cpu")
    assert not operators.has_kernel("aten::mm", "xpu") or torch.xpu.is_available()
    assert not operators.has_kernel("aten::cudnn_convolution", "cpu")


def test_functions_of_many_tensors_equal_single_ones() -> None:
    tensors = [torch.randn(3, 4), torch.randn(5)]
    expected = [tensor * 3.0 * 0.25 / 7.0 for tensor in tensors]
    assert [float(norm) for norm in operators.compute_norms(tensors)] == pytest.approx([
        float(torch.linalg.vector_norm(tensor)) for tensor in tensors
    ])
    operators.multiply_(tensors, 3.0)
    operators.multiply_(tensors, torch.tensor(0.25))
    operators.divide_(tensors, 7.0)
    for tensor, wanted in zip(tensors, expected, strict=True):
        torch.testing.assert_close(tensor, wanted)
