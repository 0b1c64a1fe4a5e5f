"""Auxiliary loss and expert load of a forward pass."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from components.model.moe import expert_layers, take_rows
from components.model.routing import Routing, RoutingTally


def auxiliary_terms(model: nn.Module) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """Take the auxiliary loss and the load of the last forward pass.

    A model without experts, or one that is not training, adds 0.
    """
    layers = expert_layers(model)
    rows = take_rows(layers)
    if rows is None:
        return torch.zeros(()), {}
    tally = RoutingTally.from_rows(rows)
    pooled = layers[0].auxiliary_scope == "model"
    balance = tally.pooled.balance_loss() if pooled else tally.balance_loss
    return layers[0].routing_penalty(tally), {
        "expert_fraction": torch.stack([
            x.counts / x.tokens for x in map(Routing.from_row, rows)
        ]),
        "largest_over_mean": tally.largest_over_mean,
        "balance_loss": balance.detach(),
        "z_loss": tally.z_loss.detach(),
    }
