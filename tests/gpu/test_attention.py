"""Attention's compiled kernels on a GPU, beside the formula in double precision."""

import math

import pytest
import torch
from torch import Tensor

from components.model.attention import AttentionContext, AttentionCore
from components.model.positions import PositionEncoding, alibi_slopes

ROWS, HEADS, LENGTH, WIDTH = 2, 4, 256, 64
DROPPED = 0.25
# Products of bfloat16, added in float32.
TOLERANCE = 2**-6

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method."),  # torch's own import
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),  # its compiler's
]


def scope_on(device: str, *, slopes: bool) -> AttentionContext:
    places = torch.arange(LENGTH, device=device)
    biases = torch.tensor(alibi_slopes(HEADS), device=device) if slopes else None
    return AttentionContext(
        encoding=PositionEncoding(position_ids=places, slopes=biases), documents=None
    )


def weights_of(query: Tensor, key: Tensor, *, slopes: bool) -> Tensor:
    place = torch.arange(LENGTH)
    scores = query @ key.mT / math.sqrt(WIDTH)
    if slopes:
        rises = torch.tensor(alibi_slopes(HEADS)).double()
        scores = scores + rises[:, None, None] * (place - place[:, None])
    return scores.masked_fill(place > place[:, None], -torch.inf).softmax(-1)


def far(found: Tensor, expected: Tensor) -> float:
    return float((found.cpu().double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("slopes", [False, True], ids=["causal", "alibi"])
@pytest.mark.parametrize("dropout", [0.0, DROPPED])
def test_a_gpu_mixes_by_the_formula_and_its_gradients_are_the_formulas(gpu, slopes, dropout):
    """Which weights are dropped is read off values that are the unit matrix."""
    torch.manual_seed(3)
    heads = [torch.randn(ROWS, HEADS, LENGTH, WIDTH).bfloat16() for _ in range(4)]
    core, scope = (
        AttentionCore(dropout=dropout, backends=["flex"]),
        scope_on(gpu, slopes=slopes),
    )
    *inputs, upstream = (each.to(gpu).requires_grad_() for each in heads)
    query, key, value = (each.double().requires_grad_() for each in heads[:3])
    weights = weights_of(query, key, slopes=slopes)
    kept = torch.ones(ROWS, HEADS, LENGTH, LENGTH, dtype=torch.bool)
    for part in range(0, LENGTH, WIDTH):  # as many columns at a time as a head is wide
        unit = torch.zeros(ROWS, HEADS, LENGTH, WIDTH, dtype=torch.bfloat16, device=gpu)
        unit[:, :, part : part + WIDTH] = torch.eye(WIDTH, device=gpu)
        torch.manual_seed(5)
        found = core(inputs[0], inputs[1], unit.requires_grad_(), scope, first_head=0)
        kept[..., part : part + WIDTH] = found.detach().cpu() != 0
    torch.manual_seed(5)
    mixed = core(*inputs, scope, first_head=0)
    expected = (weights * kept / (1 - dropout)) @ value
    assert far(mixed.detach(), expected.detach()) < TOLERANCE
    grown = torch.autograd.grad(mixed, inputs, upstream.detach())
    wanted = torch.autograd.grad(expected, [query, key, value], heads[3].double())
    assert max(map(far, grown, wanted)) < TOLERANCE
