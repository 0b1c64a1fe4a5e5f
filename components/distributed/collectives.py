"""Collectives of rows with their gradients, and of errors.

All-gather and reduce-scatter are adjoint to each other; an all-to-all to the all-to-all with
swapped counts. Every rank takes part, even without rows, also in the backward pass. Computation
between `async_start` and `async_wait` hides the collective and its adjoint.
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
from components.model.checkpoint_storage import compute_once, is_given_back
from components.torch_internals.distributed import all_reduced, gathered, scattered

T = TypeVar("T")

# Torch 2.13 renamed both and warns about the old names. Older releases have only those.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def wait_for_works(works: Sequence[dist.Work]) -> None:
    """Wait for collectives; the watchdog recognizes a waiting rank by this file's name."""
    for work in works:
        work.wait()


Started = tuple[Tensor, dist.Work | None]
CollectiveStart = Callable[[Tensor], Started]


class Collective(NamedTuple):
    """A collective and its adjoint."""

    forward: CollectiveStart
    adjoint: CollectiveStart

    def reverse_direction(self) -> "Collective":
        return Collective(self.adjoint, self.forward)

    def async_start(self, rows: Float[Tensor, "rows *rest"]) -> "PendingCollective":
        apply: Callable[..., Tensor] = _StartCollective.apply
        state = _CollectiveState(self)
        return PendingCollective(apply(rows, state), state)


class PendingCollective(NamedTuple):
    """Rows under way. ``link`` only connects the autograd graph; its values are undefined."""

    link: Float[Tensor, "rows *rest"]
    state: "_CollectiveState"

    def async_wait(self) -> Float[Tensor, "arrived *rest"]:
        """Wait for the result; on a device its stream waits, not the host."""
        apply: Callable[..., Tensor] = _WaitCollective.apply
        return apply(*self)


def make_gather(group: dist.ProcessGroup) -> Collective:
    """Return the all-gather of rows in rank order; its reverse is a reduce-scatter."""
    return Collective(partial(start_gather, group=group), partial(start_sum, group=group))


def make_exchange(
    sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup
) -> Collective:
    """Return the all-to-all that sends the first ``sent[0]`` rows to the first rank, etc."""
    forward = partial(_exchange, sent=sent, received=received, group=group)
    return Collective(forward, partial(_exchange, sent=received, received=sent, group=group))


def gather_rows(rows: Float[Tensor, "rows *rest"], group: dist.ProcessGroup) -> Tensor:
    """All-gather every rank's rows, and wait."""
    apply: Callable[..., Tensor] = _Gather.apply
    return apply(rows, group)


def start_gather(rows: Tensor, *, group: dist.ProcessGroup, at_once: bool = False) -> Started:
    """Start an all-gather of rows; ``at_once`` also waits for it. In graphs it always waits."""
    if torch.compiler.is_compiling():
        return gathered(rows.contiguous(), 0, group), None
    everyones = rows.new_empty(dist.get_world_size(group) * len(rows), *rows.shape[1:])
    work = all_gather(everyones, rows.contiguous(), group=group, async_op=not at_once)
    return everyones, work


def start_sum(rows: Tensor, *, group: dist.ProcessGroup, at_once: bool = False) -> Started:
    """Start a reduce-scatter of rows; ``at_once`` also waits for it."""
    if torch.compiler.is_compiling():
        return scattered(rows.contiguous(), "sum", 0, group), None
    mine = rows.new_empty(len(rows) // dist.get_world_size(group), *rows.shape[1:])
    work = reduce_scatter(mine, rows.contiguous(), group=group, async_op=not at_once)
    return mine, work


def start_all_reduce(
    share: Tensor, *, group: dist.ProcessGroup, at_once: bool = False
) -> Started:
    """Start an all-reduce into new memory; ``at_once`` also waits for it."""
    if torch.compiler.is_compiling():
        return all_reduced(share, "sum", group), None
    total = share.clone(memory_format=torch.contiguous_format)
    return total, dist.all_reduce(total, group=group, async_op=not at_once)


def _exchange(
    rows: Tensor, *, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup
) -> Started:
    arrived, leaving = rows.new_empty(sum(received), *rows.shape[1:]), rows.contiguous()
    counts = list(received), list(sent)
    return arrived, dist.all_to_all_single(
        arrived, leaving, *counts, group=group, async_op=True
    )


@dataclass
class _CollectiveState:
    """Shared state of a collective's start and end; it drops its tensors to free the graph."""

    collective: Collective
    result: Tensor | None = None
    work: dist.Work | None = None

    def start_collective(self, start: CollectiveStart, rows: Tensor) -> Tensor:
        self.result, self.work = start(rows)
        return self.result

    def end_collective(self) -> Tensor:
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
            state.start_collective(state.collective.forward, rows)
        # Autograd expects gradients with the shape of this result: the shape of the sent rows.
        return rows.new_empty(()).expand(rows.shape)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return ctx.state.end_collective(), None


class _WaitCollective(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, link: Tensor, state: _CollectiveState) -> Tensor:
        ctx.state = state
        return compute_once(state.end_collective)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return ctx.state.start_collective(ctx.state.collective.adjoint, upstream[0]), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return compute_once(lambda: start_gather(rows, group=group, at_once=True)[0])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return start_sum(upstream[0], group=ctx.group, at_once=True)[0], None


def gather_results(task: Callable[[], T], group: NodeTree | None = None) -> list[T]:
    """Run ``task`` on every rank; return all ranks' results, in rank order, on every rank.

    The results travel over ``group``, or over the default group. All ranks raise the
    RecipeError of the first rank with one, so that none waits. Other errors stay on their rank.
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
    for answer in everyones:
        if isinstance(answer, RecipeError):
            raise answer
    return cast("list[T]", everyones)


def by_first(task: Callable[[], T], group: NodeTree | None = None) -> T:
    """Run ``task`` on the first rank; all ranks return its result or raise its RecipeError."""
    return cast("T", gather_results(lambda: task() if dist.get_rank() == 0 else None, group)[0])
