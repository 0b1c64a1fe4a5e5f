"""Adam with its L2 term against algorithm 1 of its paper, in double precision."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from components.optim.adam import Adam

# SuperMUC-NG Phase 2: torch.optim.Adam as Megatron builds it off CUDA.
SETTINGS: dict[str, Any] = {"lr": 1.5e-4, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
SETTINGS |= {"weight_decay": 0.01, "clip_norm": 1.0, "clip_after_tokens": 0}
DOUBLE = 1e-14
VECTOR_DECAY = [("matrices", 0.0), ("all", 0.01)]


def adam_of_the_paper(
    theta: np.ndarray, gradients: np.ndarray, weight_decay: float
) -> np.ndarray:
    """Algorithm 1 of arXiv 1412.6980 on the loss plus ``weight_decay / 2 * |theta|^2``."""
    alpha, beta1, beta2, eps = 1.5e-4, 0.9, 0.999, 1e-8
    m, v = np.zeros_like(theta), np.zeros_like(theta)
    for t, gradient in enumerate(gradients, start=1):
        g = gradient + weight_decay * theta
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        theta = theta - alpha * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
    return theta


@pytest.mark.parametrize(("decay", "vector_decay"), VECTOR_DECAY)
def test_fifty_steps_equal_the_paper_and_only_vectors_are_not_decayed(decay, vector_decay):
    rng = np.random.default_rng(0)
    starts = {"embedding.weight": rng.normal(size=(5, 7)), "norm.bias": rng.normal(size=7)}
    # Gradients are as small as the decay, so a decoupled decay would differ clearly.
    gradients = {name: 0.01 * rng.normal(size=(50, *s.shape)) for name, s in starts.items()}
    parameters = {name: nn.Parameter(torch.tensor(start)) for name, start in starts.items()}
    optimizer = Adam(parameters=parameters.items(), decay=decay, **SETTINGS)
    for step in range(50):
        for name, parameter in parameters.items():
            parameter.grad = torch.tensor(gradients[name][step])
        optimizer.step()
    for name, weight_decay in (("embedding.weight", 0.01), ("norm.bias", vector_decay)):
        expected = adam_of_the_paper(starts[name], gradients[name], weight_decay)
        ours = parameters[name].detach().numpy()
        np.testing.assert_allclose(ours, expected, rtol=0, atol=DOUBLE)


def test_coupled_decay_moves_a_weight_without_loss_by_the_whole_rate() -> None:
    weight = nn.Parameter(torch.ones(2, 2, dtype=torch.float64))
    optimizer = Adam(parameters=[("weight", weight)], decay="all", **SETTINGS)
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    moved = (1.0 - weight.detach()).numpy()
    np.testing.assert_allclose(moved, 1.5e-4, rtol=1e-5)  # eps against a gradient of 0.01
