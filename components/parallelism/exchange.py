"""Rows that travel between ranks, and their gradients back.

Blocking collectives on equal or counted rows; each is the other's adjoint, an exchange its own
with the counts swapped. A rank that sends or gets no row takes part all the same: without it
the others would wait, in the backward pass too.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from components.parallelism.buckets import all_gather, reduce_scatter


def gather_rows(
    rows: Float[Tensor, "rows *rest"], group: dist.ProcessGroup
) -> Float[Tensor, "all_rows *rest"]:
    """Collect every rank's equally many rows, in the order of the ranks."""
    apply: Callable[..., Tensor] = _Gather.apply
    return apply(rows, group)


def sum_rows(
    rows: Float[Tensor, "all_rows *rest"], group: dist.ProcessGroup
) -> Float[Tensor, "rows *rest"]:
    """Add up what all ranks have of every rank's rows, and keep this rank's."""
    apply: Callable[..., Tensor] = _Sum.apply
    return apply(rows, group)


def exchange_rows(
    rows: Float[Tensor, "sent *rest"],
    sent: Sequence[int],
    received: Sequence[int],
    group: dist.ProcessGroup,
) -> Float[Tensor, "received *rest"]:
    """Send the first ``sent[0]`` rows to the group's first rank, and so on."""
    apply: Callable[..., Tensor] = _Exchange.apply
    return apply(rows, sent, received, group)


def _gathered(rows: Tensor, group: dist.ProcessGroup) -> Tensor:
    everyones = rows.new_empty(dist.get_world_size(group) * len(rows), *rows.shape[1:])
    all_gather(everyones, rows.contiguous(), group=group)
    return everyones


def _summed(rows: Tensor, group: dist.ProcessGroup) -> Tensor:
    mine = rows.new_empty(len(rows) // dist.get_world_size(group), *rows.shape[1:])
    reduce_scatter(mine, rows.contiguous(), group=group)
    return mine


def _exchanged(
    rows: Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup
) -> Tensor:
    arrived = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(arrived, rows.contiguous(), list(received), list(sent), group=group)
    return arrived


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _gathered(rows, group)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return _summed(upstream[0], ctx.group), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _summed(rows, group)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return _gathered(upstream[0], ctx.group), None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        sent: Sequence[int],
        received: Sequence[int],
        group: dist.ProcessGroup,
    ) -> Tensor:
        ctx.counts, ctx.group = (sent, received), group
        return _exchanged(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        sent, received = ctx.counts
        return _exchanged(upstream[0], received, sent, ctx.group), None, None, None
