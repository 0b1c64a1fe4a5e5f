"""The routers' sums over the parts of a sequence and over the stages of a pipeline.

A balance asked of all layers pooled is known at the last stage only, when the first stages have
long computed theirs. So each stage hands its sums to the next one beside the hidden states, as
Optimus hands the logits of all tokens; the last one adds the loss, and the gradient comes back
along the same way.
"""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from components.model.decoder import Decoder
from components.model.moe import expert_layers, take_rows
from components.model.routing import Tally
from components.parallelism.tensor_styles import SumOverRanks

if TYPE_CHECKING:
    from collections.abc import Callable


def take_tally(
    decoder: Decoder, carried: Float[Tensor, "numbers"] | None, context: DeviceMesh | None
) -> Tally | None:
    """Take what a stage's routers did in the forward pass just done, if it was training.

    ``carried`` are the sums of the stages before. The tokens of a microbatch are counted over
    all ranks of ``context``, where each has a part of every sequence.
    """
    rows = take_rows(expert_layers(decoder))
    if rows is None:
        return None
    if context is not None and context.size() > 1:
        apply: Callable[..., Tensor] = SumOverRanks.apply
        rows = apply(rows, context.get_group())
    tally = Tally.of(rows)
    return tally if carried is None else tally.after(carried)


def figures_of(
    decoder: Decoder, tally: Tally | None, loss: Float[Tensor, ""]
) -> Float[Tensor, "figures"]:
    """Return the loss, the auxiliary loss, and the fullest expert's load over the mean."""
    if tally is None:
        return torch.stack([loss, torch.zeros_like(loss), torch.ones_like(loss)])
    auxiliary = expert_layers(decoder)[0].penalty(tally)
    return torch.stack([loss, auxiliary.to(loss), tally.largest_over_mean.to(loss)])
