"""Replacements of collectives: a reduce-scatter that sends each row once, or no sending."""

from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import Mock, patch

import torch
import torch.distributed as dist
from torch import Tensor

from components.distributed import collectives


class PendingScatter(NamedTuple):
    """A running reduce-scatter that sends each row once."""

    output: Tensor
    received: Tensor
    work: dist.Work
    op: Any

    def wait(self) -> None:
        self.work.wait()
        torch.sum(self.received, 0, out=self.output.view(-1))
        if self.op == dist.ReduceOp.AVG:
            self.output.div_(len(self.received))


def scatter_once(
    output: Tensor,
    input: Tensor,
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> PendingScatter | None:
    """Reduce-scatter with the bytes of NCCL; gloo's sends the bytes of an all-reduce."""
    received = torch.empty_like(input)
    work = dist.all_to_all_single(received, input, group=group, async_op=True)
    pending = PendingScatter(output, received.view(dist.get_world_size(group), -1), work, op)
    if async_op:
        return pending
    pending.wait()
    return None


def run_with(
    step: Callable[[], object], *, gather: Callable[..., Any], scatter: Callable[..., Any]
) -> None:
    """Run a step with other collectives; `fully_shard` looks them up at each call."""
    names = collectives.all_gather.__name__, collectives.reduce_scatter.__name__
    torch_names = dict(zip(names, (gather, scatter), strict=True))
    with (
        patch.multiple(collectives, all_gather=gather, reduce_scatter=scatter),
        patch.multiple(dist, **torch_names),
    ):
        step()


def run_unsent(step: Callable[[], object]) -> None:
    """Run a step with collectives that return at once and leave their outputs unchanged."""
    collective = Mock(return_value=Mock(wait=Mock()))
    run_with(step, gather=collective, scatter=collective)
