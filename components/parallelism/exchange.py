"""Rows that travel between ranks, and their gradients back.

Collectives on equal or counted rows. Each is the other's adjoint, an exchange its own with the
counts swapped. A rank that sends or gets no row takes part all the same: without it the others
would wait, in the backward pass too.

Rows `depart` and `arrive`: what is computed between the two hides the way. Backward, gradients
depart where rows arrived and arrive where they departed, so the same computation's backward
pass hides theirs. Collectives start in one order on all ranks, forward by the code, backward by
autograd's engine, which takes what was last recorded first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from components.parallelism.buckets import all_gather, reduce_scatter

Started = tuple[Tensor, dist.Work | None]
Start = Callable[[Tensor], Started]


class Way(NamedTuple):
    """A collective, and its adjoint."""

    there: Start
    back: Start

    def reversed(self) -> "Way":
        return Way(self.back, self.there)


class Departed(NamedTuple):
    """Rows under way: of ``link`` only the graph is of use."""

    link: Float[Tensor, "rows *rest"]
    voyage: "_Voyage"


def gathering(group: dist.ProcessGroup) -> Way:
    """Collect every rank's equally many rows, in the order of the ranks."""
    return Way(partial(_gather, group=group), partial(_sum, group=group))


def summing(group: dist.ProcessGroup) -> Way:
    """Add up what all ranks have of every rank's rows, and keep this rank's."""
    return gathering(group).reversed()


def exchanging(sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup) -> Way:
    """Send the first ``sent[0]`` rows to the group's first rank, and so on."""
    there = partial(_exchange, sent=sent, received=received, group=group)
    return Way(there, partial(_exchange, sent=received, received=sent, group=group))


def depart(rows: Float[Tensor, "rows *rest"], way: Way) -> Departed:
    """Start a collective and go on."""
    apply: Callable[..., Tensor] = _Depart.apply
    voyage = _Voyage(way)
    return Departed(apply(rows, voyage), voyage)


def arrive(departed: Departed) -> Float[Tensor, "arrived *rest"]:
    """Wait for a collective's result; on a device its stream waits, not the host."""
    apply: Callable[..., Tensor] = _Arrive.apply
    return apply(*departed)


def gather_rows(
    rows: Float[Tensor, "rows *rest"], group: dist.ProcessGroup
) -> Float[Tensor, "all_rows *rest"]:
    """Collect every rank's rows at once."""
    apply: Callable[..., Tensor] = _Gather.apply
    return apply(rows, group)


def _gather(rows: Tensor, *, group: dist.ProcessGroup, at_once: bool = False) -> Started:
    everyones = rows.new_empty(dist.get_world_size(group) * len(rows), *rows.shape[1:])
    work = all_gather(everyones, rows.contiguous(), group=group, async_op=not at_once)
    return everyones, work


def _sum(rows: Tensor, *, group: dist.ProcessGroup, at_once: bool = False) -> Started:
    mine = rows.new_empty(len(rows) // dist.get_world_size(group), *rows.shape[1:])
    work = reduce_scatter(mine, rows.contiguous(), group=group, async_op=not at_once)
    return mine, work


def _exchange(
    rows: Tensor, *, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup
) -> Started:
    arrived = rows.new_empty(sum(received), *rows.shape[1:])
    counts = (list(received), list(sent))
    work = dist.all_to_all_single(
        arrived, rows.contiguous(), *counts, group=group, async_op=True
    )
    return arrived, work


@dataclass
class _Voyage:
    """What both ends of a way share; once it is over no tensor, which would keep its graph."""

    way: Way
    result: Tensor | None = None
    work: dist.Work | None = None

    def start(self, start: Start, rows: Tensor) -> Tensor:
        self.result, self.work = start(rows)
        return self.result

    def end(self) -> Tensor:
        result, work = self.result, self.work
        self.result = self.work = None
        assert result is not None
        if work is not None:
            work.wait()
        return result


class _Depart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, voyage: _Voyage) -> Tensor:
        ctx.voyage = voyage
        voyage.start(voyage.way.there, rows)
        # Autograd wants gradients of the shape that it has seen: that of what departs.
        return rows.new_empty(()).expand(rows.shape)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return ctx.voyage.end(), None


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, link: Tensor, voyage: _Voyage) -> Tensor:
        ctx.voyage = voyage
        return voyage.end()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return ctx.voyage.start(ctx.voyage.way.back, upstream[0]), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _gather(rows, group=group, at_once=True)[0]

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return _sum(upstream[0], group=ctx.group, at_once=True)[0], None
