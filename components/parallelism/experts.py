"""The expert axis: each rank holds an equal part of every layer's experts.

The ranks of the axis read different samples, as data ranks do, and have all other weights in
copies. A token goes to the ranks of its experts and its results come back, in one of two ways.

`all_gather` (Optimus, https://arxiv.org/abs/2604.00785, section 3.1): every rank gets all
tokens, computes those that chose its experts, and a reduce-scatter adds the results up. More is
sent, in equal messages. `all_to_all` (https://arxiv.org/abs/2006.16668, section 3.2, without
its capacity): a token goes to a rank once for each of its experts there, in messages as long as
the routing makes them.

For t tokens of width d on each of N ranks, top k, a rank sends in numbers, forward and again
backward:

    all_gather    2 (N - 1) t d
    all_to_all    2 (N - 1) / N k t d    (at even load)
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from typing_extensions import override

from components.model import expert_products
from components.model.decoder import Decoder
from components.model.expert_products import Matrices, Order
from components.model.moe import Experts, Mixture, Stack, expert_layers
from components.parallelism.exchange import exchange_rows, gather_rows, sum_rows
from components.parallelism.tensor_styles import place_parameters

Dispatch = Literal["all_gather", "all_to_all"]


def split_experts(decoder: Decoder, mesh: DeviceMesh, *, dispatch: Dispatch) -> None:
    """Pour expert parallelism over a decoder or a stage of one; ``mesh`` has one axis.

    The stacks of matrices become DTensors of that axis under their old names. They may be on
    ``meta``; elsewhere all ranks must hold the same values, of which each keeps its part. One
    rank alone changes nothing.
    """
    if mesh.size() == 1:
        return
    for layer in expert_layers(decoder):
        stacks = [stack for stack in layer.children() if isinstance(stack, Stack)]
        assert len(stacks[0].weight) % mesh.size() == 0, "the recipe's rules see to it"
        for stack in stacks:
            place_parameters(stack, mesh, Shard(0))
        layer.register_forward_pre_hook(partial(_lend, stacks))
        # Also where the pass breaks off, as it does once checkpointing has what it needs.
        layer.register_forward_hook(partial(_take_back, stacks), always_call=True)
        kind = {"all_gather": GatheredMixture, "all_to_all": ExchangedMixture}[dispatch]
        layer.mixture = kind(layer.mixture, mesh)


def _lend(stacks: Sequence[Stack], layer: Experts, inputs: tuple[Any, ...]) -> None:
    for stack in stacks:
        # An instance's own attribute is found before `nn.Module` looks up a parameter.
        vars(stack)["weight"] = cast("DTensor", stack.weight).to_local()


def _take_back(stacks: Sequence[Stack], layer: Experts, inputs: Any, output: Any) -> None:
    for stack in stacks:
        vars(stack).pop("weight", None)


class SplitMixture(Mixture):
    """Bring tokens and experts together, let ``mixture`` compute, and bring results back."""

    def __init__(self, mixture: Mixture, mesh: DeviceMesh) -> None:
        super().__init__(path=mixture.path)
        self.mixture = mixture
        self._ranks = mesh.size()
        self._rank = mesh.get_local_rank()
        self._group = mesh.get_group()


class GatheredMixture(SplitMixture):
    """Give every rank all tokens."""

    @override
    def forward(
        self,
        tokens: Float[Tensor, "tokens dim"],
        weights: Float[Tensor, "tokens top_k"],
        experts: Int[Tensor, "tokens top_k"],
        matrices: Matrices,
    ) -> Float[Tensor, "tokens dim"]:
        with torch.no_grad():
            chosen = gather_rows(experts, self._group)
        mixed = self.mixture(
            gather_rows(tokens, self._group),
            gather_rows(weights, self._group),
            chosen - self._rank * len(matrices.up),
            matrices._replace(parts=self._ranks),
        )
        # As wide as the tokens came, as Optimus sends them; the sums here were taken wider.
        return sum_rows(mixed.to(tokens.dtype), self._group)


class ExchangedMixture(SplitMixture):
    """Send each token to the ranks of its experts."""

    @override
    def forward(
        self,
        tokens: Float[Tensor, "tokens dim"],
        weights: Float[Tensor, "tokens top_k"],
        experts: Int[Tensor, "tokens top_k"],
        matrices: Matrices,
    ) -> Float[Tensor, "tokens dim"]:
        order = Order.of(experts, num_experts=len(matrices.up) * self._ranks, parts=1)
        arriving = torch.empty_like(order.counts)
        dist.all_to_all_single(arriving, order.counts, group=self._group)
        # Both as (rank, expert): one copy to the host reads them all.
        counts = torch.stack([order.counts, arriving]).view(2 * self._ranks, -1)
        totals = expert_products.on_host(counts.sum(1), average=len(order.pairs) // self._ranks)
        sent, received = totals[: self._ranks], totals[self._ranks :]
        send = partial(exchange_rows, sent=sent, received=received, group=self._group)
        mixed = self.mixture(
            send(tokens.index_select(0, order.tokens)),
            send(weights.flatten().index_select(0, order.pairs)[:, None]),
            _experts_of(arriving.view(self._ranks, -1), sum(received)),
            matrices,
        )
        back = exchange_rows(mixed.to(tokens.dtype), received, sent, self._group)
        sums: Tensor = mixed.new_zeros(tokens.shape)
        return sums.index_add_(0, order.tokens, back.to(mixed.dtype))


def _experts_of(counts: Int[Tensor, "ranks experts"], total: int) -> Int[Tensor, "pairs 1"]:
    """Number the experts of rows that came rank by rank, each rank's by expert."""
    ids = torch.arange(counts.shape[1], device=counts.device).repeat(len(counts))
    return ids.repeat_interleave(counts.flatten(), output_size=total)[:, None]
