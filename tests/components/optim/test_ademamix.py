"""AdEMAMix against its paper's algorithm 1 in numpy, and against torch's AdamW."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from components.optim import ademamix
from components.optim.ademamix import AdEMAMix

SETTINGS: dict[str, Any] = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "beta3": 0.9999}
SETTINGS |= {"alpha": 8.0, "alpha_warmup_tokens": 12_000, "beta3_warmup_tokens": 15_000}
SETTINGS |= {"eps": 1e-8, "weight_decay": 0.1, "decay": "matrices"}
SETTINGS |= {"clip_norm": 0.1, "clip_after_tokens": 0}
BATCH = 1_000  # tokens of a step
NAMES = {"layers.0.mlp.up.weight": (7, 5), "norm.weight": (5,)}


def half_life(beta: float) -> float:
    return float(np.log(0.5) / np.log(beta + 1e-8) - 1)


def reference(theta: np.ndarray, gradients: np.ndarray, weight_decay: float) -> np.ndarray:
    """Algorithm 1 of arXiv 2409.03137, with warm-ups of 12 and 15 steps."""
    lr, beta1, beta2, beta3, alpha, eps = 0.01, 0.9, 0.999, 0.9999, 8.0, 1e-8
    m1, m2, nu = (np.zeros_like(theta) for _ in range(3))
    for t, g in enumerate(gradients, start=1):
        a = min(1.0, t / 15)
        rate = 0.5 ** (1 / (1 + (1 - a) * half_life(beta1) + a * half_life(beta3)))
        rate = beta3 if a == 1.0 else rate
        m1 = beta1 * m1 + (1 - beta1) * g
        m2 = rate * m2 + (1 - rate) * g
        nu = beta2 * nu + (1 - beta2) * g**2
        mixed = m1 / (1 - beta1**t) + alpha * min(1.0, t / 12) * m2
        update = mixed / (np.sqrt(nu / (1 - beta2**t)) + eps) + weight_decay * theta
        theta = theta - lr * update
    return theta


def made(dtype: torch.dtype) -> dict[str, nn.Parameter]:
    rng = np.random.default_rng(0)
    starts = {name: rng.normal(size=shape) for name, shape in NAMES.items()}
    return {name: nn.Parameter(torch.tensor(value).to(dtype)) for name, value in starts.items()}


def drawn(steps: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {name: rng.normal(size=(steps, *shape)) for name, shape in NAMES.items()}


def train(
    optimizer: torch.optim.Optimizer,
    parameters: dict[str, nn.Parameter],
    gradients: dict[str, np.ndarray],
) -> None:
    for step in range(len(gradients["norm.weight"])):
        for name, parameter in parameters.items():
            parameter.grad = torch.tensor(gradients[name][step]).to(parameter)
        if isinstance(optimizer, AdEMAMix):
            optimizer.tokens = (step + 1) * BATCH
        optimizer.step()


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-13)]
)
def test_twenty_steps_equal_the_published_rule(dtype: torch.dtype, tolerance: float) -> None:
    parameters, gradients = made(dtype), drawn(20)
    starts = {
        name: parameter.detach().double().numpy().copy()
        for name, parameter in parameters.items()
    }
    train(AdEMAMix(parameters=parameters.items(), **SETTINGS), parameters, gradients)
    for name, start in starts.items():
        decay = 0.1 if len(start.shape) > 1 else 0.0
        expected = reference(start, gradients[name], decay)
        found = parameters[name].detach().double().numpy()
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def test_without_the_slow_mean_it_equals_torchs_adamw_bit_for_bit() -> None:
    ours, theirs, gradients = made(torch.float32), made(torch.float32), drawn(50)
    settings = SETTINGS | {"alpha": 0.0, "decay": "all"}
    train(AdEMAMix(parameters=ours.items(), **settings), ours, gradients)
    reference = torch.optim.AdamW(
        theirs.values(), 0.01, (0.9, 0.999), 1e-8, weight_decay=0.1, fused=True
    )
    train(reference, theirs, gradients)
    assert all(torch.equal(ours[name], theirs[name]) for name in NAMES)


# Of apple's own schedules, https://github.com/apple/ml-ademamix: the step, alpha and beta3.
PUBLISHED = [(1_000, 0.08, 0.990901), (10_000, 0.8, 0.999009), (50_000, 4.0, 0.9998)]
PUBLISHED += [(100_000, 8.0, 0.9999), (200_000, 8.0, 0.9999)]


def test_warmups_equal_the_published_values() -> None:
    lengths = {"alpha_warmup_tokens": 10**8, "beta3_warmup_tokens": 10**8}
    optimizer = AdEMAMix(parameters=made(torch.float32).items(), **SETTINGS | lengths)
    for step, alpha, beta3 in PUBLISHED:
        optimizer.tokens = step * BATCH
        assert optimizer.slow_weight == pytest.approx(alpha, rel=1e-12)
        assert optimizer.beta3 == pytest.approx(beta3, abs=1e-6)


def test_a_large_weight_is_updated_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Tensor] = []
    for numbers in (2**24, 12):
        monkeypatch.setattr(ademamix, "_SLICE_NUMBERS", numbers)
        parameters = made(torch.float64)
        train(AdEMAMix(parameters=parameters.items(), **SETTINGS), parameters, drawn(3))
        found.append(parameters["layers.0.mlp.up.weight"].detach())
    assert torch.equal(*found)


def test_a_weight_has_three_means_and_may_be_empty() -> None:
    weight, empty = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(0))
    optimizer = AdEMAMix(parameters=[("a.weight", weight), ("b", empty)], **SETTINGS)
    weight.grad, empty.grad = torch.ones_like(weight), torch.ones_like(empty)
    optimizer.step()
    kept = {"step", "exp_avg", "exp_avg_sq", "exp_avg_slow"}
    assert set(optimizer.state[weight]) == kept
