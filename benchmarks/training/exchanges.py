"""Other collectives under a step: that send each row once, or nothing."""

from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import Mock, patch

import torch
import torch.distributed as dist
from torch import Tensor

from components.distributed import collectives


class ScatteredRows(NamedTuple):
    """A reduce-scatter under way of which each row travels once."""

    output: Tensor
    everyones: Tensor
    work: dist.Work
    op: Any

    def wait(self) -> None:
        self.work.wait()
        torch.sum(self.everyones, 0, out=self.output.view(-1))
        if self.op == dist.ReduceOp.AVG:
            self.output.div_(len(self.everyones))


def scatter_once(
    output: Tensor,
    input: Tensor,
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> ScatteredRows | None:
    """Reduce and scatter as NCCL does; gloo sends as many bytes as for an all-reduce."""
    everyones = torch.empty_like(input)
    work = dist.all_to_all_single(everyones, input, group=group, async_op=True)
    begun = ScatteredRows(output, everyones.view(dist.get_world_size(group), -1), work, op)
    if async_op:
        return begun
    begun.wait()
    return None


def sending(
    step: Callable[[], object], *, gather: Callable[..., Any], scatter: Callable[..., Any]
) -> None:
    """Take a step with other collectives; `fully_shard` looks them up when it calls them."""
    names = collectives.all_gather.__name__, collectives.reduce_scatter.__name__
    theirs = dict(zip(names, (gather, scatter), strict=True))
    with (
        patch.multiple(collectives, all_gather=gather, reduce_scatter=scatter),
        patch.multiple(dist, **theirs),
    ):
        step()


def unsent(step: Callable[[], object]) -> None:
    """Take a step whose collectives return at once, with whatever was there."""
    done = Mock(return_value=Mock(wait=Mock()))
    sending(step, gather=done, scatter=done)
