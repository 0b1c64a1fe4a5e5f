"""What a block reads and what it adds: hidden states between tensor ranks.

Between blocks they travel in slices of the sequence (https://arxiv.org/abs/2205.05198, section
4.2.2) or whole. As there, of a block's gathered input a rank keeps its slice: the backward pass
gathers again, from when the gradient of the block's output arrives, beside the products that
come first. The input's gradient leaves once its last product is done, beside that of a weight.
Who computes a block again for its backward pass gathers with it, and not once more.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from components.distributed import collectives
from components.distributed.tensor_lending import GradientSum, lend, part_of, place_parameters
from components.model.kept import kept, passing_on
from components.model.products import (
    add_product,
    gradient_of_weight,
    plain_linear,
    product,
    product_dtype,
    wanted_gradients,
)
from components.torch_internals.operators import saves_through_hooks, will_run


class HiddenTransfer(NamedTuple):
    """Hidden states under way; ``gathered`` ones come rank by rank."""

    states: Tensor
    work: dist.Work | None = None
    gathered_by: int = 0

    def wait(self) -> Float[Tensor, "batch seq dim"]:
        """Wait for them; on a device its stream waits, not the host."""
        if self.work is not None:
            collectives.wait([self.work])
        if not self.gathered_by:
            return self.states
        by_rank = self.states.view(self.gathered_by, -1, *self.states.shape[1:])
        return by_rank.movedim(0, 1).flatten(1, 2)  # of one sequence: without a copy


class HiddenLayout(NamedTuple):
    """How hidden states travel between blocks: ``sliced``, or whole on each rank of a group."""

    group: dist.ProcessGroup
    sliced: bool

    def start_gather(self, hidden: Tensor, *, at_once: bool = False) -> HiddenTransfer:
        """Begin to make hidden states whole."""
        if not self.sliced:
            return HiddenTransfer(hidden)
        started = collectives.start_gather(hidden, group=self.group, at_once=at_once)
        return HiddenTransfer(*started, dist.get_world_size(self.group))

    def start_add(self, share: Tensor, *, at_once: bool = False) -> HiddenTransfer:
        """Begin to add up what all ranks have of whole hidden states."""
        if not self.sliced:
            started = collectives.start_all_reduce(share, group=self.group, at_once=at_once)
            return HiddenTransfer(*started)
        ranks = dist.get_world_size(self.group)
        by_rank = share.view(len(share), ranks, -1, share.shape[-1]).movedim(1, 0).flatten(0, 1)
        return HiddenTransfer(
            *collectives.start_sum(by_rank, group=self.group, at_once=at_once)
        )

    def gather(self, hidden: Tensor) -> Float[Tensor, "batch seq dim"]:
        """Make hidden states whole; gradients of them are each rank's share."""
        apply: Callable[..., Tensor] = _Gather.apply
        return apply(hidden, self)

    def add(self, share: Tensor, reading: "BlockCall | None" = None) -> Tensor:
        """Add up what all ranks have; the block that is ``reading`` hears of the gradient."""
        apply: Callable[..., Tensor] = _Add.apply
        if reading is None or reading.block.keeps_whole:
            return apply(share, None, self, None)
        return apply(share, reading.hidden.detach(), self, reading.block)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, between: HiddenLayout) -> Tensor:
        ctx.between = between
        whole = between.start_gather(hidden, at_once=True).wait()
        return whole if between.sliced else whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return ctx.between.start_add(upstream[0], at_once=True).wait(), None


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        share: Tensor,
        hidden: Tensor | None,
        between: HiddenLayout,
        block: "BlockInput | None",
    ) -> Tensor:
        ctx.between, ctx.block = between, block
        if hidden is not None:
            ctx.save_for_backward(hidden)
        return kept(lambda: between.start_add(share, at_once=True).wait())

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.block is None:
            return ctx.between.start_gather(upstream[0], at_once=True).wait(), None, None, None
        gathering = ctx.between.start_gather(upstream[0])
        ctx.block.gather_ahead(*ctx.saved_tensors)
        return gathering.wait(), None, None, None


class BlockInput:
    """A block's input in one pass, for all the linear maps that read it whole.

    What is gathered lives from the first map that reads it to the last, forward and backward.
    """

    def __init__(self, between: HiddenLayout, *, maps: int) -> None:
        # Where hooks take what is saved, the block is computed again, and gathers with it.
        self.keeps_whole = not between.sliced or saves_through_hooks()
        self._between = between
        self._maps = maps
        self._trained: list[Any] = []  # where the gradients of the maps' weights go
        self._arriving: HiddenTransfer | None = None
        self._whole: Tensor | None = None
        self._reads = 0
        self._gradient: Tensor | None = None
        self._added = 0

    def multiply(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Map the whole of ``hidden`` by one of the maps."""
        dtype = product_dtype(hidden)
        weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        if weight.requires_grad:
            self._trained.append(weight.grad_fn)
        apply: Callable[..., Tensor] = _Map.apply
        return apply(hidden, weight, bias, self)

    def read(self, hidden: Tensor) -> Tensor:
        return self._read(hidden, self._maps)

    def read_again(self, hidden: Tensor) -> Tensor:
        return self._read(hidden, len(self._trained))

    def _read(self, hidden: Tensor, readers: int) -> Tensor:
        if self._whole is None:
            self._whole = (self._arriving or self._between.start_gather(hidden)).wait()
            self._arriving = None
        whole = self._whole
        self._reads += 1
        if self._reads == readers:
            self._whole, self._reads = None, 0
        return whole

    def gather_ahead(self, hidden: Tensor) -> None:
        """Begin to gather what the backward pass at hand will read."""
        # A schedule without a bubble comes for the gradients of weights at another time.
        if self._trained and will_run(self._trained[0]):
            self._arriving = self._between.start_gather(hidden)

    def add_gradient(
        self, rows: Tensor, weight: Tensor, shape: torch.Size
    ) -> HiddenTransfer | None:
        """Add one map's gradient of the input, ``rows @ weight``; the last sends the sum."""
        if self._gradient is None:
            self._gradient = product(rows, weight)
        else:
            add_product(self._gradient, rows, weight)
        self._added += 1
        if self._added < self._maps:
            return None
        total, self._gradient, self._added = self._gradient, None, 0
        return self._between.start_add(total.view(shape))


class _Map(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, block: BlockInput
    ) -> Tensor:
        whole = block.read(hidden)
        ctx.block = block
        ctx.save_for_backward(whole if block.keeps_whole else hidden, weight)
        return plain_linear(whole, weight, bias)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        given, weight = ctx.saved_tensors
        rows = upstream[0].flatten(0, -2)
        of_hidden, of_weight, of_bias, *_ = wanted_gradients(ctx)
        leaving, of_given = None, (*upstream[0].shape[:-1], given.shape[-1])
        if of_hidden:
            leaving = ctx.block.add_gradient(rows, weight, of_given)
        gradient = None
        if of_weight:
            whole = given if ctx.block.keeps_whole else ctx.block.read_again(given)
            gradient = gradient_of_weight(rows, whole.flatten(0, -2))
        sums = rows.sum(0) if of_bias else None
        return None if leaving is None else leaving.wait(), gradient, sums, None


class BlockCall(NamedTuple):
    """A block's call at hand."""

    block: BlockInput
    hidden: Tensor


class _Call:
    """A block's call at hand; compiled blocks have none."""

    def __init__(self) -> None:
        self.reading: BlockCall | None = None


def split_block(
    block: nn.Module,
    maps: Sequence[nn.Module],
    output: nn.Module,
    mesh: DeviceMesh,
    *,
    between: HiddenLayout,
    shares: GradientSum | None,
) -> None:
    """Let linear ``maps`` of a block read its input whole, and ``output`` give what all add.

    Input and output are hidden states as they travel. ``maps`` are split by columns, or all
    ranks hold them whole; ``output`` is split by rows. Its bias is added after the sum: once,
    and to a slice where there are slices, whose gradients ``shares`` adds up.
    """
    call = _Call()
    for one in maps:
        _read_shared(one, call)
    _split_rows(output, mesh, between, shares, call)
    forward: Any = block.forward

    # Within the forward pass, not before it: who computes the block again for its backward
    # pass keeps what came in, and gathers again.
    def share(hidden: Tensor, *others: Any) -> Any:
        hidden = hidden.to(product_dtype(hidden))
        if torch.compiler.is_compiling():  # a graph has no state
            return forward(between.gather(hidden), *others)
        call.reading = BlockCall(BlockInput(between, maps=len(maps)), hidden)
        try:
            return forward(hidden, *others)
        finally:
            call.reading = None

    vars(block)["forward"] = share


def _read_shared(one: Any, call: _Call) -> None:
    plain = one.forward

    def multiply(hidden: Tensor) -> Tensor:
        if call.reading is None:
            return cast("Tensor", plain(hidden))
        return call.reading.block.multiply(hidden, one.weight, one.bias)

    vars(one)["forward"] = multiply


def _split_rows(
    module: nn.Module,
    mesh: DeviceMesh,
    between: HiddenLayout,
    shares: GradientSum | None,
    call: _Call,
) -> None:
    place_parameters(module, mesh, Replicate(), weight=Shard(1))
    lend(module, lambda name, part: part_of(part) if name == "weight" else None)
    multiply: Any = module.forward

    def add(part: Tensor) -> Tensor:
        total = between.add(passing_on(multiply(part)), call.reading)
        if module.bias is None:
            return total
        return total + part_of(cast("DTensor", module.bias), shares).type_as(total)

    vars(module)["forward"] = add


def split_columns(module: nn.Module, mesh: DeviceMesh) -> None:
    """Compute this rank's part of a linear map's outputs, from the whole input."""
    place_parameters(module, mesh, Shard(0))
    lend(module, lambda name, parameter: part_of(parameter))
