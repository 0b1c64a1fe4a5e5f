"""Private names of torch.distributed: shards, meshes, groups, records, pipeline stages.

All were seen in 2.10 to 2.15, but for what says otherwise.
"""

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
"""A shard of what another axis of the mesh has split before, in rows with strides.

FSDP over tensor ranks splits from right to left over the axes of a mesh.
"""

_new: Any = _functional_collectives
# Torch 2.13 gave two of them another name and warns of the old one, all that older ones have.
gathered = getattr(_new, "all_gather_single", None) or _new.all_gather_tensor
"""Collectives that return new tensors: what torch's compiler knows, and hides behind products.

In public those of `torch.distributed` become these in a graph, with copies for their writing.
"""
scattered = getattr(_new, "reduce_scatter_single", None) or _new.reduce_scatter_tensor
all_reduced = _new.all_reduce


def flattened(mesh: DeviceMesh, name: str) -> DeviceMesh:
    """See all axes of a mesh as one, named ``name``, with one process group.

    A public mesh of one axis would make the group anew for each.
    """
    return mesh._flatten(name)


def concatenated(meshes: Sequence[DeviceMesh]) -> DeviceMesh:
    """Make one mesh whose axes are those of meshes of one root.

    In public a mesh is cut from its root by names, which joined axes have not.
    """
    return DeviceMesh._concatenate(list(meshes))


_made: Counter[tuple[int, ...]] = Counter()  # how often this process has made such a group


def group_of_members(ranks: Sequence[int], timeout: timedelta) -> dist.ProcessGroup:
    """Connect some ranks by gloo; these alone call, and none waits for the others.

    In public the name under which they meet counts the groups of each process, and ranks that
    have joined more of them than others wait for these in vain.
    """
    members = tuple(ranks)
    _made[members] += 1
    name = f"{'_'.join(map(str, members))}#{_made[members]}"
    with patch.object(distributed_c10d, "_hash_ranks_to_str", lambda ranks: name):
        group = dist.new_group(list(members), timeout, "gloo", use_local_synchronization=True)
    return cast("dist.ProcessGroup", group)


def local_tensor(tensor: Tensor) -> Tensor:
    """Return the part on this rank; `DTensor.to_local` is an operator that modes would see."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def placement_of(parameter: DTensor) -> Any:
    """Return what is known of a DTensor beside its numbers, for `placed`."""
    return parameter._spec


def placed(part: Tensor, placement: Any) -> DTensor:
    """Make a DTensor of this rank's part; `DTensor.from_local` asks again what is known."""
    made: Any = DTensor  # its own constructor has no types
    return cast("DTensor", made(part, placement, requires_grad=False))


def flight_record(*, of_nccl: bool) -> bytes:
    """Dump torch's flight recorder as JSON: NCCL's, or the one that other back-ends share.

    In public it writes a pickle when a collective times out, and only for NCCL.
    """
    groups: Any = getattr(_C, "_distributed_c10d")  # noqa: B009 - its stubs lack the recorder
    dump = groups._dump_nccl_trace_json if of_nccl else groups._dump_fr_trace_json
    return cast("bytes", dump())


NOWHERE = torch.device("meta")


def _move(infos: Iterable[Any], device: torch.device) -> None:
    """Receive into memory on ``device``, made anew where it is elsewhere."""
    for info in infos:
        # Nobody sends a model's own inputs, which have none; torch before 2.13 lacks the name.
        buffer = getattr(info, "buffer", None)
        if buffer is not None and buffer.device.type != device.type:
            made = torch.empty_like(buffer, device=device)
            # Torch before 2.13 says once that it wants a gradient.
            info.buffer = made.requires_grad_(buffer.requires_grad)


class LeanStage(PipelineStage):
    """Receive into memory that lives from the message to the end of its backward pass.

    Torch's own stage keeps three tensors of hidden states for each microbatch of a step, though
    few are in flight; here they are on ``meta`` in between. In public nobody says where a stage
    receives: ``_setup_forward_recv_info`` was seen in 2.13 to 2.15 (releases before take memory
    first and give it back from the first step on).

    Unless it ``splits_backward``, a stage that is asked for the gradient of its input computes
    those of its weights with it, and has none left when it is asked for these.
    """

    splits_backward = True
    # Called after the pass for weights alone, which gives gradients without autograd's hooks.
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
