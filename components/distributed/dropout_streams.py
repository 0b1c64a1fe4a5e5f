"""Which random stream dropout draws from on each tensor rank.

Whoever trains seeds torch's generators alike on all tensor ranks, anew for every microbatch.
What the ranks hold whole they must then drop alike; what each holds a part of, they must drop
each in its own way. The masks differ from those of one process wherever the tensor degree is
above 1, in every framework that splits a tensor: parts of a mask are not what one stream draws.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from hashlib import blake2b
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from typing_extensions import override

from components.model.attention import AttentionCore
from components.model.decoder import Decoder
from components.model.masks import ForwardScope
from components.torch_internals.autograd import in_backward


def stream_seed(seed: int, mesh: DeviceMesh, *, sequence_parallel: bool) -> int:
    """Return what to seed this tensor rank with, for ``seed`` that all of them share.

    With sequence parallelism each rank holds other tokens of the residual stream: the seeds
    differ. Without, all hold the same: the seed stays.
    """
    return _folded(seed, mesh.get_local_rank()) if sequence_parallel else seed


def seed_layers(decoder: Decoder, seed_of: Callable[[str], int]) -> None:
    """Seed torch's generators before each layer, so that masks do not depend on the stages.

    ``seed_of`` gives a layer's seed in the microbatch at hand. A layer that the backward pass
    computes again has its generators put back by whoever repeats it; another microbatch may be
    at hand by then.
    """

    def seed(name: str, layer: nn.Module, inputs: Any) -> None:
        if not in_backward():
            torch.manual_seed(seed_of(name))

    for name, layer in decoder.layers.items():
        layer.register_forward_pre_hook(partial(seed, name), prepend=True)


class SplitCore(AttentionCore):
    """Drop attention weights from a stream of this rank's own: its heads are no other's.

    The stream follows from the seed that the generators were last given, the rank, and
    ``layer``; afterwards they go on as if nothing had been drawn.
    """

    def __init__(self, core: AttentionCore, mesh: DeviceMesh, *, layer: int) -> None:
        super().__init__(dropout=core.dropout, backend=core.backend)
        self.core = core
        self._place = mesh.get_local_rank(), layer

    @override
    def forward(
        self,
        query: Float[Tensor, "batch heads seq head_dim"],
        key: Float[Tensor, "batch kv_heads seq head_dim"],
        value: Float[Tensor, "batch kv_heads seq head_dim"],
        scope: ForwardScope,
        *,
        first_head: int,
    ) -> Float[Tensor, "batch heads seq head_dim"]:
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
