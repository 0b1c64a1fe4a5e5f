"""Parameter groups with settings that are multiples of the optimizer's settings."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import nn

SCALE = "lr_scale"  # key of a group: factor of the schedule's rate


class Factors(Protocol):
    """Factors of the optimizer's settings for some parameters."""

    @property
    def lr(self) -> float: ...
    @property
    def eps(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...


def scale_groups(
    optimizer: torch.optim.Optimizer, factors: Mapping[nn.Parameter, Factors]
) -> None:
    """Split the groups by their parameters' factors, in order; multiply groups' settings."""
    groups = []
    for group in optimizer.param_groups:
        by_factor: dict[Factors, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            by_factor.setdefault(factors[parameter], []).append(parameter)
        for factor, parameters in by_factor.items():
            new_group = {**group, "params": parameters, SCALE: factor.lr}
            new_group["lr"] *= factor.lr
            new_group["eps"] *= factor.eps
            for key in {"weight_decay", "late_decay"} & new_group.keys():
                new_group[key] *= factor.weight_decay
            groups.append(new_group)
    optimizer.param_groups[:] = groups


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of each group: ``lr`` times the group's factor."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get(SCALE, 1.0)
