"""Hidden states between tensor ranks: a block's input and its output.

Between blocks they are sequence slices (https://arxiv.org/abs/2205.05198, section 4.2.2) or
whole. As in the paper, a rank stores only its slice of a block's gathered input. The backward
pass gathers the input again when the output's gradient arrives, during the first products. The
reduction of the input's gradient starts after its last product, during a weight's product. If a
block is recomputed for its backward pass, only the recomputation gathers.
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
from components.distributed.local_parameters import (
    GradientSum,
    place_parameters,
    to_local,
    use_local_parameters,
)
from components.model.checkpoint_storage import compute_once, pass_through
from components.model.linear import (
    add_product,
    gradient_of_weight,
    multiply_matrices,
    plain_linear,
    product_dtype,
    wanted_gradients,
)
from components.torch_internals.operators import saves_through_hooks, will_run


class HiddenTransfer(NamedTuple):
    """Hidden states under way; with ``gathered_by`` ranks they arrive in rank order."""

    states: Tensor
    work: dist.Work | None = None
    gathered_by: int = 0

    def wait_for_states(self) -> Float[Tensor, "batch seq dim"]:
        """Wait for the states; on a device its stream waits, not the host."""
        if self.work is not None:
            collectives.wait_for_works([self.work])
        if not self.gathered_by:
            return self.states
        by_rank = self.states.view(self.gathered_by, -1, *self.states.shape[1:])
        return by_rank.movedim(0, 1).flatten(1, 2)  # of one sequence: without a copy


class HiddenLayout(NamedTuple):
    """Layout of hidden states between blocks: ``sliced``, or whole on each rank of a group."""

    group: dist.ProcessGroup
    sliced: bool

    def start_gather(self, hidden: Tensor, *, at_once: bool = False) -> HiddenTransfer:
        """Start the gather of whole hidden states."""
        if not self.sliced:
            return HiddenTransfer(hidden)
        started = collectives.start_gather(hidden, group=self.group, at_once=at_once)
        return HiddenTransfer(*started, dist.get_world_size(self.group))

    def start_add(self, share: Tensor, *, at_once: bool = False) -> HiddenTransfer:
        """Start the sum over ranks of whole hidden states."""
        if not self.sliced:
            started = collectives.start_all_reduce(share, group=self.group, at_once=at_once)
            return HiddenTransfer(*started)
        ranks = dist.get_world_size(self.group)
        by_rank = share.view(len(share), ranks, -1, share.shape[-1]).movedim(1, 0).flatten(0, 1)
        return HiddenTransfer(
            *collectives.start_sum(by_rank, group=self.group, at_once=at_once)
        )

    def gather_hidden(self, hidden: Tensor) -> Float[Tensor, "batch seq dim"]:
        """Gather whole hidden states; their gradients are each rank's share."""
        apply: Callable[..., Tensor] = _Gather.apply
        return apply(hidden, self)

    def add_shares(self, share: Tensor, reading: "BlockCall | None" = None) -> Tensor:
        """Sum over ranks; in backward, the ``reading`` block gathers its input early."""
        apply: Callable[..., Tensor] = _Add.apply
        if reading is None or reading.block.keeps_whole:
            return apply(share, None, self, None)
        return apply(share, reading.hidden.detach(), self, reading.block)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, between: HiddenLayout) -> Tensor:
        ctx.between = between
        whole = between.start_gather(hidden, at_once=True).wait_for_states()
        return whole if between.sliced else whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return ctx.between.start_add(upstream[0], at_once=True).wait_for_states(), None


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
        return compute_once(lambda: between.start_add(share, at_once=True).wait_for_states())

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.block is None:
            return (
                ctx.between.start_gather(upstream[0], at_once=True).wait_for_states(),
                None,
                None,
                None,
            )
        gathering = ctx.between.start_gather(upstream[0])
        ctx.block.gather_ahead(*ctx.saved_tensors)
        return gathering.wait_for_states(), None, None, None


class BlockInput:
    """A block's input in one pass, for all linear maps that read it whole.

    The gathered input exists from the first map that reads it to the last, in both passes.
    """

    def __init__(self, between: HiddenLayout, *, maps: int) -> None:
        # If hooks handle saved tensors, the block is recomputed, which gathers the input.
        self.keeps_whole = not between.sliced or saves_through_hooks()
        self._between = between
        self._maps = maps
        self._trained: list[Any] = []  # where the gradients of the maps' weights go
        self._arriving: HiddenTransfer | None = None
        self._whole: Tensor | None = None
        self._reads = 0
        self._gradient: Tensor | None = None
        self._added = 0

    def apply_map(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Apply one of the maps to the whole of ``hidden``."""
        dtype = product_dtype(hidden)
        weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        if weight.requires_grad:
            self._trained.append(weight.grad_fn)
        apply: Callable[..., Tensor] = _Map.apply
        return apply(hidden, weight, bias, self)

    def gather_input(self, hidden: Tensor) -> Tensor:
        return self._read(hidden, self._maps)

    def read_again(self, hidden: Tensor) -> Tensor:
        return self._read(hidden, len(self._trained))

    def _read(self, hidden: Tensor, readers: int) -> Tensor:
        if self._whole is None:
            self._whole = (
                self._arriving or self._between.start_gather(hidden)
            ).wait_for_states()
            self._arriving = None
        whole = self._whole
        self._reads += 1
        if self._reads == readers:
            self._whole, self._reads = None, 0
        return whole

    def gather_ahead(self, hidden: Tensor) -> None:
        """Start the gather of the input for the running backward pass."""
        # Zero-bubble schedules compute the gradients of weights in a later pass.
        if self._trained and will_run(self._trained[0]):
            self._arriving = self._between.start_gather(hidden)

    def add_gradient(
        self, rows: Tensor, weight: Tensor, shape: torch.Size
    ) -> HiddenTransfer | None:
        """Add one map's input gradient, ``rows @ weight``; the last starts the reduction."""
        if self._gradient is None:
            self._gradient = multiply_matrices(rows, weight)
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
        whole = block.gather_input(hidden)
        ctx.block = block
        ctx.save_for_backward(whole if block.keeps_whole else hidden, weight)
        return plain_linear(whole, weight, bias)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        saved, weight = ctx.saved_tensors
        rows = upstream[0].flatten(0, -2)
        of_hidden, of_weight, of_bias, *_ = wanted_gradients(ctx)
        leaving, gradient_shape = None, (*upstream[0].shape[:-1], saved.shape[-1])
        if of_hidden:
            leaving = ctx.block.add_gradient(rows, weight, gradient_shape)
        gradient = None
        if of_weight:
            whole = saved if ctx.block.keeps_whole else ctx.block.read_again(saved)
            gradient = gradient_of_weight(rows, whole.flatten(0, -2))
        sums = rows.sum(0) if of_bias else None
        return None if leaving is None else leaving.wait_for_states(), gradient, sums, None


class BlockCall(NamedTuple):
    """A block's current input."""

    block: BlockInput
    hidden: Tensor


class _Call:
    """Holder of a block's current call; None in compiled blocks."""

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
    """Make a block's linear ``maps`` read its whole input, and ``output`` sum over ranks.

    Input and output have the layout ``between``. ``maps`` are split by columns, or whole on all
    ranks. ``output`` is split by rows. Its bias is added once, after the sum, to a slice if the
    layout is sliced. ``shares`` sums the bias gradients of slices.
    """
    call = _Call()
    for linear in maps:
        _read_shared(linear, call)
    _split_rows(output, mesh, between, shares, call)
    forward: Any = block.forward

    # Inside the forward pass, not before it: activation checkpointing keeps the block's input,
    # and its recomputation must gather again.
    def call_block(hidden: Tensor, *others: Any) -> Any:
        hidden = hidden.to(product_dtype(hidden))
        if torch.compiler.is_compiling():  # a graph has no state
            return forward(between.gather_hidden(hidden), *others)
        call.reading = BlockCall(BlockInput(between, maps=len(maps)), hidden)
        try:
            return forward(hidden, *others)
        finally:
            call.reading = None

    vars(block)["forward"] = call_block


def _read_shared(linear: Any, call: _Call) -> None:
    plain = linear.forward

    def multiply_shared(hidden: Tensor) -> Tensor:
        if call.reading is None:
            return cast("Tensor", plain(hidden))
        return call.reading.block.apply_map(hidden, linear.weight, linear.bias)

    vars(linear)["forward"] = multiply_shared


def _split_rows(
    module: nn.Module,
    mesh: DeviceMesh,
    between: HiddenLayout,
    shares: GradientSum | None,
    call: _Call,
) -> None:
    place_parameters(module, mesh, Replicate(), weight=Shard(1))
    use_local_parameters(
        module, lambda name, part: to_local(part) if name == "weight" else None
    )
    multiply: Any = module.forward

    def add_shares(part: Tensor) -> Tensor:
        total = between.add_shares(pass_through(multiply(part)), call.reading)
        if module.bias is None:
            return total
        return total + to_local(cast("DTensor", module.bias), shares).type_as(total)

    vars(module)["forward"] = add_shares


def split_columns(module: nn.Module, mesh: DeviceMesh) -> None:
    """Split a linear map by columns: each rank computes a part of its outputs."""
    place_parameters(module, mesh, Shard(0))
    use_local_parameters(module, lambda name, parameter: to_local(parameter))
