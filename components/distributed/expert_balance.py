"""Balance without a loss: after each step experts with more than their share are chosen less.

Each expert has a bias that is added to its scores for the choice alone. The tokens that count
are those of the whole step, of all ranks (https://arxiv.org/abs/2408.15664, algorithm 1).
"""

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from components.model.decoder import Decoder
from components.model.moe import Experts, expert_layers


def forget_loads(decoders: Iterable[Decoder]) -> None:
    """Begin to count anew: what was counted is of a step that was not taken."""
    for layer in _balanced(decoders):
        layer.load = None


def balance_experts(decoders: Iterable[Decoder], ranks: DeviceMesh) -> None:
    """Move all biases by what a step's routers chose; all ``ranks`` of a stage call it.

    They are those that see other tokens: mesh axes data, expert and context.
    """
    layers = list(_balanced(decoders))
    loads = [layer.load for layer in layers if layer.load is not None]
    if not loads:
        return
    assert len(loads) == len(layers), "all layers of a stage see all its tokens"
    total = torch.stack(loads)  # (layers, experts)
    if ranks.size() > 1:
        dist.all_reduce(total, group=ranks.get_group())
    for layer, load in zip(layers, total, strict=True):
        layer.balance(load)
        layer.load = None


def _balanced(decoders: Iterable[Decoder]) -> Iterator[Experts]:
    layers = (layer for decoder in decoders for layer in expert_layers(decoder))
    return (layer for layer in layers if layer.choice_bias is not None)
