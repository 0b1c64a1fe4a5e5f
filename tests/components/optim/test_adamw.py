"""AdamW against algorithm 2 of its paper and Optimus's variant, in double precision."""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

from components.optim.adamw import AdamW

SETTINGS: dict[str, Any] = {"lr": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8}
SETTINGS |= {"weight_decay": 0.1, "decay_order": "before"}
SETTINGS |= {"clip_norm": 1.0, "clip_after_tokens": 0}
SINGLE = 1e-6  # 20 float32 updates, each rounded to 6e-8
DOUBLE = 1e-13
MULTIPLIERS = [0.05 * (step + 1) for step in range(20)]
SHAPES = {
    "embedding.weight": (5, 7),
    "dense.weight": (7, 3),
    "dense.bias": (3,),
    "norm.weight": (7,),
    "embedding_norm.weight": (7,),
}
VECTORS = {"dense.bias", "norm.weight", "embedding_norm.weight"}
SPARED = {"matrices": VECTORS, "all": set(), "all_but_embedding": {"embedding.weight"}}
Order = Literal["before", "after"]
Decay = Literal["matrices", "all", "all_but_embedding"]

# Which weights each published work decays, and when. Optimus counts steps like algorithm 2.
WORKS = [
    pytest.param("matrices", "before", id="BLOOM, Teuken: no norms or biases; apex's order"),
    pytest.param("all", "after", id="Mula: all parameters, after the update"),
    pytest.param("all", "before", id="all parameters in torch's order"),
    pytest.param("matrices", "after", id="matrices after the update"),
    pytest.param("all_but_embedding", "before", id="OLMo 2 and SmolLM3: norms, no embedding"),
]


def adam_updates(gradients: np.ndarray) -> Iterator[np.ndarray]:
    """Lines 5 to 12 of algorithm 2, arXiv 1711.05101: each step's direction times alpha."""
    alpha, beta1, beta2, eps = 0.01, 0.9, 0.95, 1e-8
    m, v = np.zeros_like(gradients[0]), np.zeros_like(gradients[0])
    for t, g in enumerate(gradients, start=1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        yield alpha * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)


def reference(
    theta: np.ndarray, gradients: np.ndarray, weight_decay: float, order: Order
) -> np.ndarray:
    """Algorithm 2, lambda = ``alpha * weight_decay``; or Optimus's factor on the new weight."""
    for update, eta in zip(adam_updates(gradients), MULTIPLIERS, strict=True):
        kept = 1 - eta * 0.01 * weight_decay
        if order == "before":
            theta = theta * kept - eta * update
        else:
            theta = (theta - eta * update) * kept
    return theta


def draw() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Draw initial weights and the gradients of 20 steps."""
    rng = np.random.default_rng(0)
    starts = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    gradients = {name: rng.normal(size=(20, *shape)) for name, shape in SHAPES.items()}
    return starts, gradients


def train(
    optimizer: torch.optim.Optimizer,
    parameters: dict[str, nn.Parameter],
    gradients: dict[str, np.ndarray],
    steps: range,
) -> None:
    for step in steps:
        for group in optimizer.param_groups:
            group["lr"] = SETTINGS["lr"] * MULTIPLIERS[step]
        for name, parameter in parameters.items():
            parameter.grad = torch.tensor(gradients[name][step]).to(parameter)
        optimizer.step()


def make_parameters(
    starts: dict[str, np.ndarray], dtype: torch.dtype
) -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(torch.tensor(value).to(dtype)) for name, value in starts.items()}


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, SINGLE), (torch.float64, DOUBLE)]
)
@pytest.mark.parametrize(("decay", "order"), WORKS)
def test_twenty_steps_equal_the_published_rule(decay, order, dtype, tolerance):
    starts, gradients = draw()
    parameters = make_parameters(starts, dtype)
    settings = SETTINGS | {"decay": decay, "decay_order": order}
    train(AdamW(parameters=parameters.items(), **settings), parameters, gradients, range(20))
    for name, start in starts.items():
        weight_decay = 0.0 if name in SPARED[decay] else 0.1
        expected = reference(start, gradients[name], weight_decay, order)
        ours = parameters[name].detach().double().numpy()
        np.testing.assert_allclose(ours, expected, rtol=0, atol=tolerance)


def test_the_two_orders_differ_by_more_than_the_tolerance() -> None:
    starts, gradients = draw()
    before, after = (
        reference(starts["norm.weight"], gradients["norm.weight"], 0.1, order)
        for order in ("before", "after")
    )
    assert np.abs(before - after).max() > 5 * SINGLE


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_resumed_optimizer_equals_an_uninterrupted_one(order: Order) -> None:
    starts, gradients = draw()
    settings = SETTINGS | {"decay": "matrices", "decay_order": order}
    whole = make_parameters(starts, torch.float32)
    train(AdamW(parameters=whole.items(), **settings), whole, gradients, range(20))
    halved = make_parameters(starts, torch.float32)
    first = AdamW(parameters=halved.items(), **settings)
    train(first, halved, gradients, range(10))
    second = AdamW(parameters=halved.items(), **settings)
    second.load_state_dict(first.state_dict())
    train(second, halved, gradients, range(10, 20))
    assert all(torch.equal(whole[name], halved[name]) for name in SHAPES)


def test_every_parameter_is_in_exactly_one_group() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    optimizer = AdamW(parameters=model.named_parameters(), decay="matrices", **SETTINGS)
    decayed, spared = optimizer.param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    assert {id(p) for p in decayed["params"]} == {id(model[0].weight)}
    others = model[0].bias, model[1].weight, model[1].bias
    assert {id(p) for p in spared["params"]} == {*map(id, others)}
