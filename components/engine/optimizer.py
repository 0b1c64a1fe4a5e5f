"""The recipe's optimizer over what a rank updates, its groups as the model wants them."""

from collections.abc import Sequence

import torch
from torch import nn

from components.build import build_node
from components.config.recipe import Recipe
from components.model.decoder import Decoder
from components.model.parametrization import MuP, factors_of
from components.optim.groups import scale_groups


def build_optimizer(
    recipe: Recipe, decoder: Decoder, named: Sequence[tuple[str, nn.Parameter]]
) -> torch.optim.Optimizer:
    """Build it over parameters, each with its name in the whole model."""
    optimizer: torch.optim.Optimizer = build_node(recipe.optimizer, "optimizer")(
        parameters=named
    )
    if isinstance(decoder.parametrization, MuP):
        scale_groups(optimizer, factors_of(decoder.parametrization, named))
    return optimizer
