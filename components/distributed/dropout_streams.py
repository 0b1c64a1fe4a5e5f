"""Which random stream dropout draws from on each tensor rank.

Torch's generators are seeded alike on all tensor ranks, anew for every microbatch. What ranks
hold whole they must drop alike; what each holds a part of, each in its own way.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from typing_extensions import override

from components.model.attention import AttentionCore, ForwardScope
from components.model.decoder import Decoder
from components.torch_internals.autograd import in_backward


def stream_seed(seed: int, mesh: DeviceMesh, *, sequence_parallel: bool) -> int:
    """Return what to seed this rank with, for ``seed`` that all ranks of the axis share.

    With sequence parallelism each rank holds other tokens: the seeds differ, else they stay.
    """
    return _folded(seed, mesh.get_local_rank()) if sequence_parallel else seed


def seed_layers(decoder: Decoder, seed_of: Callable[[str], int]) -> None:
    """Seed torch's generators before each layer, so that masks do not depend on the stages.

    ``seed_of`` gives a layer's seed in the microbatch at hand; activation checkpointing itself
    puts back the generators of a layer that it repeats.
    """

    def seed(name: str, layer: nn.Module, inputs: Any) -> None:
        if not in_backward():
            torch.manual_seed(seed_of(name))

    for name, layer in decoder.layers.items():
        layer.register_forward_pre_hook(partial(seed, name), prepend=True)


class SplitCore(AttentionCore):
    """Drop attention weights from a stream of this rank's own: its heads are no other's."""

    def __init__(self, core: AttentionCore, mesh: DeviceMesh, *, layer: int) -> None:
        super().__init__(dropout=core.dropout, backend=core.backend)
        self.core = core
        self._place = mesh.get_local_rank(), layer

    @override
    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, scope: ForwardScope, *, first_head: int
    ) -> Tensor:
        drops = self.training and self.dropout > 0
        with self._stream(query.device) if drops else nullcontext():
            mixed: Tensor = self.core(query, key, value, scope, first_head=first_head)
        return mixed

    @contextmanager
    def _stream(self, device: torch.device) -> Iterator[None]:
        devices = [] if device.type == "cpu" else [device]
        kind = "cuda" if device.type == "cpu" else device.type  # unused where there are none
        with torch.random.fork_rng(devices, device_type=kind):
            torch.manual_seed(_folded(torch.initial_seed(), *self._place))
            yield


def _folded(*place: int) -> int:
    return int.from_bytes(blake2b(repr(place).encode(), digest_size=7).digest())
