"""What each weight of a decoder is initialized with: a standard deviation or a constant."""

import math
from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from components.config.model_spec.initialization import NormalSpec
from components.model.decoder import Decoder
from components.model.parametrization import weight_kind


def initial_stds(model: Decoder) -> Iterator[tuple[str, nn.Parameter, float | None]]:
    """List each parameter under its global name; ``None`` stands for a constant (vectors)."""
    normal, parametrization = model.initialization, model.parametrization
    for prefix, module in model.named_modules():
        factor = 1.0
        if getattr(module, "writes_residual", False):
            scaled = 1.0 / math.sqrt(2 * model.num_layers)
            factor = {"plain": 1.0, "scaled": scaled, "zero": 0.0}[normal.residual]
        for name, parameter in module.named_parameters(prefix, recurse=False):
            if parameter.dim() < 2:
                yield name, parameter, None
                continue
            std = normal.ends.get(prefix)
            if std is None:
                std = _std(normal, parameter)
            if parametrization is not None:
                std *= parametrization.std_factor(weight_kind(name, parameter.dim()))
            yield name, parameter, factor * std


def _std(normal: NormalSpec, parameter: Tensor) -> float:
    if normal.std != "fan_in":
        return normal.std
    outputs, inputs = parameter.shape[-2:]
    return min(1.0, math.sqrt(outputs / inputs)) / math.sqrt(inputs)


def initial_constant(model: nn.Module, name: str) -> float:
    """Return what all numbers of a vector start at: what its module ``starts`` it at, if said.

    Else norms' weights are 1 and biases 0.
    """
    owner, _, key = name.rpartition(".")
    starts: Mapping[str, float] = getattr(model.get_submodule(owner), "starts", {})
    return starts.get(key, 0.0 if key == "bias" else 1.0)
