"""Initialization of each weight of a decoder: its standard deviation or its constant."""

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from components.config.model_spec.initialization import NormalSpec
from components.model.decoder import Decoder
from components.model.initialization import draw_rows
from components.model.parametrization import MuP, weight_kind


def initial_stds(model: Decoder) -> Iterator[tuple[str, nn.Parameter, float | None]]:
    """Yield each parameter's global name and initial std; ``None``: a vector."""
    normal, parametrization = model.initialization, model.parametrization
    for prefix, module in model.named_modules():
        factor = 1.0
        if getattr(module, "writes_residual", False):
            scaled = 1.0 / math.sqrt(model.num_branches)
            factor = {"plain": 1.0, "scaled": scaled, "zero": 0.0}[normal.residual]
        for name, parameter in module.named_parameters(prefix, recurse=False):
            if parameter.dim() < 2:
                yield name, parameter, None
                continue
            std = normal.embedding_and_head_std.get(prefix)
            if std is None:
                std = getattr(module, "initial_std", None) or _std(normal, parameter)
            if isinstance(parametrization, MuP):
                std *= parametrization.std_factor(weight_kind(name, parameter.dim()))
            yield name, parameter, factor * std


def _std(normal: NormalSpec, parameter: Tensor) -> float:
    if normal.std != "fan_in":
        return normal.std
    outputs, inputs = parameter.shape[-2:]
    return min(1.0, math.sqrt(outputs / inputs)) / math.sqrt(inputs)


def draw_vector(model: nn.Module, name: str, *, size: int, seed: int) -> Tensor | None:
    """Draw a whole vector that its module's ``drawn_vectors`` names; None for others."""
    owner, _, key = name.rpartition(".")
    module = model.get_submodule(owner)
    drawn: Mapping[str, Callable[[Tensor], Tensor]] = getattr(module, "drawn_vectors", {})
    if key not in drawn:
        return None
    normal = draw_rows(name, (size, 1), first_row=0, last_row=size, seed=seed, std=1.0)
    return drawn[key](torch.special.ndtr(normal[:, 0].double()))


def initial_constant(model: nn.Module, name: str) -> float:
    """Return a vector's entry in its module's ``starts``; by default biases are 0, norms 1."""
    owner, _, key = name.rpartition(".")
    starts: Mapping[str, float] = getattr(model.get_submodule(owner), "starts", {})
    return starts.get(key, 0.0 if key == "bias" else 1.0)
