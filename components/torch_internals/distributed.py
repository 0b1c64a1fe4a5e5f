"""Private names of torch.distributed, checked in 2.10 to 2.15, except where noted."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, cast
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import _C, Tensor
from torch.distributed import _functional_collectives, distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import _StridedShard
from typing_extensions import override

StridedShard = _StridedShard
"""Shard in strided rows: FSDP over tensor ranks splits from right to left over mesh axes."""

_new: Any = _functional_collectives
# Torch 2.13 renamed two of them and warns about the old names. Older releases have only those.
gathered = getattr(_new, "all_gather_single", None) or _new.all_gather_tensor
"""Functional collectives return new tensors. Torch's compiler overlaps them with products.

In a graph, torch replaces public collectives by these, with copies for in-place results.
"""
scattered = getattr(_new, "reduce_scatter_single", None) or _new.reduce_scatter_tensor
all_reduced = _new.all_reduce


def flatten_mesh(mesh: DeviceMesh, name: str) -> DeviceMesh:
    """Flatten a mesh into one axis ``name``; a public mesh would create its group each time."""
    return mesh._flatten(name)


def concatenate_meshes(meshes: Sequence[DeviceMesh]) -> DeviceMesh:
    """Join meshes of one root; the public way cuts by names, which joined axes lack."""
    return DeviceMesh._concatenate(list(meshes))


_made: Counter[tuple[int, ...]] = Counter()  # how often this process has made such a group


def group_of_members(ranks: Sequence[int], timeout: timedelta) -> dist.ProcessGroup:
    """Create a gloo group of some ranks; only members call this, and none waits for others.

    In the public API the group's name contains each process's count of groups. Ranks with
    different counts would wait for each other forever.
    """
    members = tuple(ranks)
    _made[members] += 1
    name = f"{'_'.join(map(str, members))}#{_made[members]}"
    with patch.object(distributed_c10d, "_hash_ranks_to_str", lambda ranks: name):
        group = dist.new_group(list(members), timeout, "gloo", use_local_synchronization=True)
    return cast("dist.ProcessGroup", group)


def local_tensor(tensor: Tensor) -> Tensor:
    """Return this rank's part; dispatch modes would intercept `DTensor.to_local`."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def placement_of(parameter: DTensor) -> Any:
    """Return a DTensor's spec (mesh, placements, shape), for `place_part`."""
    return parameter._spec


def place_part(part: Tensor, placement: Any) -> DTensor:
    """Make a DTensor of this rank's part; `DTensor.from_local` would recompute the spec."""
    made: Any = DTensor  # its own constructor has no types
    return cast("DTensor", made(part, placement, requires_grad=False))


def flight_record(*, of_nccl: bool) -> bytes:
    """Dump torch's flight recorder as JSON: NCCL's, or the recorder of all other backends.

    The public API writes a pickle when a collective times out, and only for NCCL.
    """
    groups: Any = getattr(_C, "_distributed_c10d")  # noqa: B009 - its stubs lack the recorder
    dump = groups._dump_nccl_trace_json if of_nccl else groups._dump_fr_trace_json
    return cast("bytes", dump())


NOWHERE = torch.device("meta")


def _move(infos: Iterable[Any], device: torch.device) -> None:
    """Replace receive buffers that are not on ``device`` by new ones there."""
    for info in infos:
        # The model's own inputs are not received: their buffer is None, and in torch before
        # 2.13 the attribute is missing.
        buffer = getattr(info, "buffer", None)
        if buffer is not None and buffer.device.type != device.type:
            moved = torch.empty_like(buffer, device=device)
            # Torch before 2.13 sets `requires_grad` only once.
            info.buffer = moved.requires_grad_(buffer.requires_grad)


class LeanStage(PipelineStage):
    """Pipeline stage with receive buffers that exist from the message to its backward pass.

    Torch's own stage stores three tensors of hidden states for each microbatch of a step,
    though few are in flight. Here idle buffers are on ``meta``, which no public API allows.
    ``_setup_forward_recv_info`` is in 2.13 to 2.15. Older releases first allocate the memory,
    and free it from the first step on. Unless ``splits_backward``, the pass for input gradients
    also computes the weight gradients, and the pass for weight gradients does nothing.
    """

    splits_backward = True
    # Called after a pass that computes only weight gradients, which skips autograd's hooks.
    on_weight_gradients: Callable[[], None] = staticmethod(lambda: None)

    @override
    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> Any:
        _move(self.args_recv_info[fwd_chunk_id], self.device)
        return super().get_fwd_recv_ops(fwd_chunk_id)

    @override
    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> Any:
        _move(self.grad_recv_info.get(bwd_chunk_id, ()), self.device)
        return super().get_bwd_recv_ops(bwd_chunk_id)

    @override
    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: Any = None,
        full_backward: bool = True,
        last_backward: bool = False,
    ) -> None:
        full_backward = full_backward or not self.splits_backward
        super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        _move(self.args_recv_info[bwd_chunk_id], NOWHERE)
        _move(self.grad_recv_info.get(bwd_chunk_id, ()), NOWHERE)

    @override
    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        if self.splits_backward:
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
            self.on_weight_gradients()

    @override
    def _setup_forward_recv_info(self, *args: Any, **kwargs: Any) -> None:
        with patch.object(self, "device", NOWHERE):
            super()._setup_forward_recv_info(*args, **kwargs)

    @override
    def _create_grad_recv_info(self, *args: Any, **kwargs: Any) -> Any:
        with patch.object(self, "device", NOWHERE):
            return super()._create_grad_recv_info(*args, **kwargs)
