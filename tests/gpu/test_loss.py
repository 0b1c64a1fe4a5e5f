"""Head and loss in 16 bits on a GPU, beside torch's own in double precision on the host.

On the device the softmax overwrites its own input, and products are added to a wider sum.
"""

import pytest
import torch
import torch.nn.functional as F

from components.model.loss import penalized_cross_entropy
from components.model.softmax import ON_DEVICE
from tests.components.model.test_loss_precision import MOST_ERROR, NARROW

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("precision", NARROW)
@pytest.mark.parametrize("rows", [517, 1_024, 32_000, 131_072])  # torch has a kernel for each
def test_a_gpu_finds_loss_and_gradients_of_the_host_in_double_precision(gpu, precision, rows):
    torch.manual_seed(7)
    tokens, dim = ON_DEVICE.least_tokens + 1, 64
    hidden, weight = torch.randn(tokens, dim), 0.1 * torch.randn(rows, dim)
    targets = torch.randint(rows, (tokens,))
    sides = [side.to(precision).double().requires_grad_() for side in (hidden, weight)]
    exact_loss = F.cross_entropy(F.linear(sides[0], sides[1]), targets)
    exact = torch.autograd.grad(exact_loss, sides)
    there = [side.detach().to(gpu, precision).requires_grad_() for side in sides]
    loss = penalized_cross_entropy(there[0], there[1], targets.to(gpu))[0]
    assert loss.item() == pytest.approx(exact_loss.item(), rel=1e-3)
    for found, expected in zip(torch.autograd.grad(loss, there), exact, strict=True):
        assert (found.cpu().double() - expected).norm() / expected.norm() < MOST_ERROR
