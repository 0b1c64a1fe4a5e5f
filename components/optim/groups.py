"""Groups of parameters whose settings are multiples of the optimizer's."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import nn

SCALE = "lr_scale"  # of a group: what multiplies the schedule's rate


class Factors(Protocol):
    """What multiplies the settings of some parameters."""

    @property
    def lr(self) -> float: ...
    @property
    def eps(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...


def scale_groups(
    optimizer: torch.optim.Optimizer, factors: Mapping[nn.Parameter, Factors]
) -> None:
    """Part the groups by the factors of their parameters, and multiply what each group has.

    The order of parameters with the same factors stays.
    """
    groups = []
    for group in optimizer.param_groups:
        alike: dict[Factors, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            alike.setdefault(factors[parameter], []).append(parameter)
        for factor, parameters in alike.items():
            one = {**group, "params": parameters, SCALE: factor.lr}
            one["lr"] *= factor.lr
            one["eps"] *= factor.eps
            for key in {"weight_decay", "late_decay"} & one.keys():
                one[key] *= factor.weight_decay
            groups.append(one)
    optimizer.param_groups[:] = groups


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give each group its multiple of the rate of this step."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get(SCALE, 1.0)
