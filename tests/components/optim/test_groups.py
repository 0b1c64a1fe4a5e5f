"""Rules of all Adam optimizers, and groups with their own settings."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from components.optim.adam import Adam
from components.optim.adamw import AdamW
from components.optim.ademamix import AdEMAMix
from components.optim.groups import scale_groups, set_rate

SETTINGS: dict[str, Any] = {"lr": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-3}
SETTINGS |= {"weight_decay": 0.1, "decay": "all", "clip_norm": 1.0, "clip_after_tokens": 0}
SLOW = {"beta3": 0.999, "alpha": 8.0, "alpha_warmup_tokens": 0, "beta3_warmup_tokens": 0}
KINDS = [
    (AdamW, {"decay_order": "before"}),
    (AdamW, {"decay_order": "after"}),
    (AdEMAMix, SLOW),
]
kinds = pytest.mark.parametrize(("kind", "more"), [(Adam, {}), *KINDS])


class Multiples(NamedTuple):
    lr: float
    eps: float
    weight_decay: float


@kinds
def test_a_parameter_under_two_names_is_updated_once(kind: Any, more: dict[str, Any]) -> None:
    shared = nn.Parameter(torch.ones(2, 2))
    named = [("embedding.weight", shared), ("head.weight", shared)]
    optimizer = kind(parameters=named, **SETTINGS, **more)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1]


@kinds
def test_a_parameter_without_gradient_is_unchanged_and_a_closure_called_once(kind, more):
    used, idle = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    optimizer = kind(parameters=[("used", used), ("idle", idle)], **SETTINGS, **more)

    def closure() -> float:
        loss = used.square().sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 4.0
    assert (used < 1).all()
    assert torch.equal(idle, torch.ones(2, 2))


@pytest.mark.parametrize(("kind", "more"), [(Adam, {}), *KINDS[:2]])
def test_the_update_is_fused_except_on_meta(kind: Any, more: dict[str, Any]) -> None:
    for device, fused in (("cpu", True), ("meta", False)):
        parameter = nn.Parameter(torch.ones(2, 2, device=device))
        optimizer = kind(parameters=[("weight", parameter)], **SETTINGS, **more)
        assert optimizer.defaults["fused"] is fused
        parameter.grad = torch.zeros_like(parameter)
        optimizer.step()


@pytest.mark.parametrize(("kind", "more"), KINDS)
def test_scaled_groups_equal_separate_optimizers(kind: Any, more: dict[str, Any]) -> None:
    torch.manual_seed(0)
    factors = {"a": Multiples(1.0, 1.0, 1.0), "b": Multiples(0.25, 0.5, 4.0)}
    starts = {name: torch.randn(4, 3) for name in factors}
    together = {name: nn.Parameter(one.clone()) for name, one in starts.items()}
    alone = {name: nn.Parameter(one.clone()) for name, one in starts.items()}
    optimizer = kind(parameters=list(together.items()), **SETTINGS, **more)
    scale_groups(optimizer, {together[name]: one for name, one in factors.items()})
    others = {}
    for name, factor in factors.items():
        own = {key: SETTINGS[key] * getattr(factor, key) for key in Multiples._fields}
        settings = SETTINGS | own
        others[name] = kind(parameters=[(name, alone[name])], **settings, **more)
    for rate in (0.01, 0.02, 0.005):
        gradients = {name: torch.randn(4, 3) for name in factors}
        for name, gradient in gradients.items():
            together[name].grad, alone[name].grad = gradient.clone(), gradient.clone()
            set_rate(others[name], rate * factors[name].lr)
            others[name].step()
        set_rate(optimizer, rate)
        optimizer.step()
    for name in factors:
        assert torch.equal(together[name], alone[name]), name


def test_parameters_with_the_same_multiples_stay_one_group() -> None:
    weights = [nn.Parameter(torch.zeros(2, 2)) for _ in range(3)]
    named = [(f"w{number}", one) for number, one in enumerate(weights)]
    optimizer = AdamW(parameters=named, **SETTINGS, decay_order="before")
    scale_groups(optimizer, dict.fromkeys(weights, Multiples(0.5, 1.0, 2.0)))
    (group,) = optimizer.param_groups
    assert [id(one) for one in group["params"]] == [id(one) for one in weights]
    assert (group["lr"], group["weight_decay"]) == (0.005, 0.2)
