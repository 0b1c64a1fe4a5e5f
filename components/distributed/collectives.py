"""Collectives of rows with their gradients, and of failures.

All-gather and reduce-scatter are each the other's adjoint; an all-to-all is its own, with the
counts swapped. Every rank takes part, also without a row, and in the backward pass too. What is
computed between `async_start` and `async_wait` hides the collective, and its gradient's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from components.distributed.node_tree import NodeTree
from components.errors import RecipeError
from components.model.kept import is_given_back, kept
from components.torch_internals.distributed import all_reduced, gathered, scattered

T = TypeVar("T")

# Torch 2.13 gave both another name and warns of the old one, all that older releases have.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def wait(works: Sequence[dist.Work]) -> None:
    """Wait for collectives to end; the watchdog knows a rank that waits by this file."""
    for work in works:
        work.wait()


Started = tuple[Tensor, dist.Work | None]
Start = Callable[[Tensor], Started]


class Collective(NamedTuple):
    """A collective, and its adjoint."""

    forward: Start
    adjoint: Start

    def reversed(self) -> "Collective":
        return Collective(self.adjoint, self.forward)

    def async_start(self, rows: Float[Tensor, "rows *rest"]) -> "PendingCollective":
        apply: Callable[..., Tensor] = _StartCollective.apply
        state = _CollectiveState(self)
        return PendingCollective(apply(rows, state), state)


class PendingCollective(NamedTuple):
    """Rows under way: of ``link`` only the graph is of use."""

    link: Float[Tensor, "rows *rest"]
    state: "_CollectiveState"

    def async_wait(self) -> Float[Tensor, "arrived *rest"]:
        """Wait for the result; on a device its stream waits, not the host."""
        apply: Callable[..., Tensor] = _WaitCollective.apply
        return apply(*self)


def gathering(group: dist.ProcessGroup) -> Collective:
    """Collect all ranks' rows in their order; reversed, add up what all have of one's rows."""
    return Collective(partial(start_gather, group=group), partial(start_sum, group=group))


def exchanging(
    sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup
) -> Collective:
    """Send the first ``sent[0]`` rows to the group's first rank, and so on."""
    forward = partial(_exchange, sent=sent, received=received, group=group)
    return Collective(forward, partial(_exchange, sent=received, received=sent, group=group))


def gather_rows(rows: Float[Tensor, "rows *rest"], group: dist.ProcessGroup) -> Tensor:
    """Collect every rank's rows at once."""
    apply: Callable[..., Tensor] = _Gather.apply
    return apply(rows, group)


def start_gather(rows: Tensor, *, group: dist.ProcessGroup, at_once: bool = False) -> Started:
    """Begin to collect all ranks' rows; ``at_once`` ends it too, as graphs want it."""
    if torch.compiler.is_compiling():
        return gathered(rows.contiguous(), 0, group), None
    everyones = rows.new_empty(dist.get_world_size(group) * len(rows), *rows.shape[1:])
    work = all_gather(everyones, rows.contiguous(), group=group, async_op=not at_once)
    return everyones, work


def start_sum(rows: Tensor, *, group: dist.ProcessGroup, at_once: bool = False) -> Started:
    """Begin to add up what all ranks have of each one's rows; ``at_once`` ends it too."""
    if torch.compiler.is_compiling():
        return scattered(rows.contiguous(), "sum", 0, group), None
    mine = rows.new_empty(len(rows) // dist.get_world_size(group), *rows.shape[1:])
    work = reduce_scatter(mine, rows.contiguous(), group=group, async_op=not at_once)
    return mine, work


def start_all_reduce(
    share: Tensor, *, group: dist.ProcessGroup, at_once: bool = False
) -> Started:
    """Begin to add up what all ranks have, in new memory; ``at_once`` ends it too."""
    if torch.compiler.is_compiling():
        return all_reduced(share, "sum", group), None
    total = share.clone(memory_format=torch.contiguous_format)
    return total, dist.all_reduce(total, group=group, async_op=not at_once)


def _exchange(
    rows: Tensor, *, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup
) -> Started:
    arrived, given = rows.new_empty(sum(received), *rows.shape[1:]), rows.contiguous()
    counts = list(received), list(sent)
    return arrived, dist.all_to_all_single(arrived, given, *counts, group=group, async_op=True)


@dataclass
class _CollectiveState:
    """What both ends of a collective share: no tensor once it is over, to free its graph."""

    collective: Collective
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


class _StartCollective(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, state: _CollectiveState) -> Tensor:
        ctx.state = state
        if not is_given_back():
            state.start(state.collective.forward, rows)
        # Autograd wants gradients of the shape that it has seen: that of what departs.
        return rows.new_empty(()).expand(rows.shape)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return ctx.state.end(), None


class _WaitCollective(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, link: Tensor, state: _CollectiveState) -> Tensor:
        ctx.state = state
        return kept(state.end)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return ctx.state.start(ctx.state.collective.adjoint, upstream[0]), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return kept(lambda: start_gather(rows, group=group, at_once=True)[0])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return start_sum(upstream[0], group=ctx.group, at_once=True)[0], None


def together(task: Callable[[], T], group: NodeTree | None = None) -> list[T]:
    """Do ``task`` on every rank, and return on all what each of them got, in their order.

    Ranks tell each other over ``group``, or over the default group.

    Another error than a RecipeError stays with its rank.

    Raises:
        RecipeError: that of the first rank with one, on all ranks: else they would wait for it.
    """
    mine: T | RecipeError
    try:
        mine = task()
    except RecipeError as error:
        mine = error
    if group is None:
        everyones = [mine] * dist.get_world_size()
        dist.all_gather_object(everyones, mine)
    else:
        everyones = group.all_gather(mine)
    for one in everyones:
        if isinstance(one, RecipeError):
            raise one
    return cast("list[T]", everyones)


def by_first(task: Callable[[], T], group: NodeTree | None = None) -> T:
    """Do ``task`` on the first rank alone; what it got, or its RecipeError, is all ranks'."""
    return cast("T", together(lambda: task() if dist.get_rank() == 0 else None, group)[0])
