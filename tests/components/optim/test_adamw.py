"""AdamW against algorithm 2 of its paper, written out in double precision."""

from typing import Literal

import numpy as np
import pytest
import torch
from torch import nn

from components.errors import RecipeError
from components.optim.adamw import AdamW

SETTINGS = {
    "lr": 0.01,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "weight_decay": 0.1,
    "clip_norm": 1.0,
}
TOLERANCE = 1e-6  # 20 float32 updates, each rounded to 6e-8


def adamw_of_the_paper(
    theta: np.ndarray,
    gradients: list[np.ndarray],
    multipliers: list[float],
    weight_decay: float,
) -> np.ndarray:
    """Algorithm 2 of arXiv 1711.05101; its lambda is torch's ``lr * weight_decay``."""
    alpha, beta1, beta2, eps = 0.01, 0.9, 0.95, 1e-8
    m, v = np.zeros_like(theta), np.zeros_like(theta)
    for t, (g, eta) in enumerate(zip(gradients, multipliers, strict=True), start=1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        theta = theta - eta * (
            alpha * m_hat / (np.sqrt(v_hat) + eps) + alpha * weight_decay * theta
        )
    return theta


@pytest.mark.parametrize(("decay", "vector_decay"), [("matrices", 0.0), ("all", 0.1)])
def test_twenty_steps_equal_the_paper_and_only_vectors_are_spared(
    decay: Literal["matrices", "all"], vector_decay: float
) -> None:
    rng = np.random.default_rng(0)
    starts = {"embedding.weight": rng.normal(size=(5, 7)), "norm.weight": rng.normal(size=7)}
    gradients = {
        name: [rng.normal(size=start.shape) for _ in range(20)]
        for name, start in starts.items()
    }
    multipliers = [0.05 * (step + 1) for step in range(20)]
    parameters = {
        name: nn.Parameter(torch.tensor(start).float()) for name, start in starts.items()
    }
    optimizer = AdamW(parameters=parameters.items(), decay=decay, **SETTINGS)
    for step, multiplier in enumerate(multipliers):
        for group in optimizer.param_groups:
            group["lr"] = SETTINGS["lr"] * multiplier
        for name, parameter in parameters.items():
            parameter.grad = torch.tensor(gradients[name][step]).float()
        optimizer.step()
    for name, weight_decay in (("embedding.weight", 0.1), ("norm.weight", vector_decay)):
        expected = adamw_of_the_paper(starts[name], gradients[name], multipliers, weight_decay)
        ours = parameters[name].detach().double().numpy()
        np.testing.assert_allclose(ours, expected, rtol=0, atol=TOLERANCE)


def test_a_parameter_under_two_names_is_updated_once() -> None:
    shared = nn.Parameter(torch.ones(2, 2))
    optimizer = AdamW(
        parameters=[("embedding.weight", shared), ("head.weight", shared)],
        decay="matrices",
        **SETTINGS,
    )
    assert [len(group["params"]) for group in optimizer.param_groups] == [1]


def test_every_parameter_is_in_exactly_one_group() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    optimizer = AdamW(parameters=model.named_parameters(), decay="matrices", **SETTINGS)
    decayed, spared = optimizer.param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    assert {id(p) for p in decayed["params"]} == {id(model[0].weight)}
    assert {id(p) for p in spared["params"]} == {
        id(model[0].bias),
        id(model[1].weight),
        id(model[1].bias),
    }


def test_the_update_is_one_kernel_where_there_is_one_and_plain_on_meta() -> None:
    for device, fused in (("cpu", True), ("meta", False)):
        parameter = nn.Parameter(torch.ones(2, 2, device=device))
        optimizer = AdamW(parameters=[("weight", parameter)], decay="all", **SETTINGS)
        assert optimizer.defaults["fused"] is fused


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("beta1", 1.0),
        ("beta2", -0.1),
        ("lr", 0.0),
        ("eps", 0.0),
        ("weight_decay", -0.1),
        ("clip_norm", 0.0),
    ],
)
def test_rejects_values_out_of_range(name: str, value: float) -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    with pytest.raises(RecipeError, match=rf"optimizer.{name}: {value} is out of range"):
        AdamW(parameters=[("weight", weight)], decay="all", **{**SETTINGS, name: value})
