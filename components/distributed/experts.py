"""Expert parallelism: each rank holds a part of every layer's experts; sums of their routers.

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

A router's balance that is asked of all layers pooled is known at the last stage only, when the
first stages have long computed theirs. So each stage hands its sums to the next one beside the
hidden states, as Optimus hands the logits of all tokens; the last one adds the loss, and the
gradient comes back along the same way.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from typing_extensions import override

from components.distributed.collectives import (
    Collective,
    PendingCollective,
    async_start,
    async_wait,
    exchanging,
    gather_rows,
    gathering,
    summing,
)
from components.distributed.tensor_styles import SumOverRanks, place_parameters
from components.model import expert_products
from components.model.decoder import Decoder
from components.model.expert_products import Matrices, Order, dealt, spread, summed
from components.model.moe import Experts, Mixture, Stack, expert_layers, take_rows
from components.model.routing import RoutingTally

if TYPE_CHECKING:
    from collections.abc import Callable


def take_tally(
    decoder: Decoder, carried: Float[Tensor, "numbers"] | None, context: DeviceMesh | None
) -> RoutingTally | None:
    """Take what a stage's routers did in the forward pass just done, if it was training.

    ``carried`` are the sums of the stages before. The tokens of a microbatch are counted over
    all ranks of ``context``, where each has a part of every sequence.
    """
    rows = take_rows(expert_layers(decoder))
    if rows is None:
        return None
    if context is not None and context.size() > 1:
        apply: Callable[..., Tensor] = SumOverRanks.apply
        rows = apply(rows, context.get_group())
    tally = RoutingTally.of(rows)
    return tally if carried is None else tally.after(carried)


def figures_of(
    decoder: Decoder, tally: RoutingTally | None, loss: Float[Tensor, ""]
) -> Float[Tensor, "figures"]:
    """Return the loss, the auxiliary loss, and the fullest expert's load over the mean."""
    if tally is None:
        return torch.stack([loss, torch.zeros_like(loss), torch.ones_like(loss)])
    auxiliary = expert_layers(decoder)[0].penalty(tally)
    return torch.stack([loss, auxiliary.to(loss), tally.largest_over_mean.to(loss)])


Dispatch = Literal["all_gather", "all_to_all"]


def split_experts(
    decoder: Decoder, mesh: DeviceMesh, *, dispatch: Dispatch, overlap: int
) -> None:
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
        layer.mixture = kind(layer.mixture, mesh, overlap=overlap)


def _lend(stacks: Sequence[Stack], layer: Experts, inputs: tuple[Any, ...]) -> None:
    for stack in stacks:
        # An instance's own attribute is found before `nn.Module` looks up a parameter.
        vars(stack)["weight"] = cast("DTensor", stack.weight).to_local()


def _take_back(stacks: Sequence[Stack], layer: Experts, inputs: Any, output: Any) -> None:
    for stack in stacks:
        vars(stack).pop("weight", None)


class SplitMixture(Mixture):
    """Bring tokens and experts together, let ``mixture`` compute, and bring results back.

    The tokens go in ``overlap`` parts, which all depart at once: while one is computed, others
    are under way, there or back, in the backward pass too. Tutel's adaptive pipelining, by
    hand (https://arxiv.org/abs/2206.03382).
    """

    def __init__(self, mixture: Mixture, mesh: DeviceMesh, *, overlap: int) -> None:
        super().__init__(path=mixture.path)
        self.mixture = mixture
        self._overlap = overlap
        self._ranks = mesh.size()
        self._rank = mesh.get_local_rank()
        self._group = mesh.get_group()

    def _split(self, rows: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
        # No part is empty; ranks have equally many tokens, and so equally many parts.
        return rows.tensor_split(min(self._overlap, rows.shape[dim]), dim)


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
        there, back = gathering(self._group), summing(self._group)
        parts = zip(self._split(tokens), self._split(weights), strict=True)
        departed = [[async_start(rows, there) for rows in part] for part in parts]
        with torch.no_grad():
            chosen = gather_rows(experts, self._group) - self._rank * len(matrices.up)
        chosen = chosen.view(self._ranks, *experts.shape)
        matrices = matrices._replace(parts=self._ranks)
        returning = []
        for given, ids in zip(departed, self._split(chosen, 1), strict=True):
            mixed = self.mixture(*map(async_wait, given), ids.flatten(0, 1), matrices)
            # As wide as the tokens came, as Optimus sends them; the sums were taken wider.
            returning.append(async_start(mixed.to(tokens.dtype), back))
        return _joined([async_wait(rows) for rows in returning])


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
        orders = [
            Order.of(ids, num_experts=len(matrices.up) * self._ranks, parts=1)
            for ids in self._split(experts)
        ]
        ways, arriving = self._ways(orders)
        parts = zip(self._split(tokens), self._split(weights), orders, ways, strict=True)
        departed = [_depart_pairs(*part) for part in parts]
        returning = []
        for given, ids, way in zip(departed, arriving, ways, strict=True):
            mixed = self.mixture(*map(async_wait, given), ids, matrices)
            returning.append(async_start(mixed.to(tokens.dtype), way.reversed()))
        return _joined([
            summed(async_wait(rows), order, len(order.pairs) // experts.shape[1])
            for rows, order in zip(returning, orders, strict=True)
        ])

    def _ways(
        self, orders: Sequence[Order]
    ) -> tuple[list[Collective], list[Int[Tensor, "pairs 1"]]]:
        """Tell the ranks what comes to them: each part's way, and what its pairs' experts are.

        One exchange and one copy to the host do all parts.
        """
        counts = torch.stack([order.counts for order in orders])
        leaving = counts.view(len(orders), self._ranks, -1).transpose(0, 1).contiguous()
        arriving = torch.empty_like(leaving)
        dist.all_to_all_single(arriving, leaving, group=self._group)
        arriving, leaving = arriving.transpose(0, 1), leaving.transpose(0, 1)
        even = [n for order in orders for n in dealt(len(order.pairs), self._ranks)]
        pairs = torch.stack([leaving, arriving]).sum(-1).flatten()
        read = expert_products.on_host(pairs, even=even * 2)
        ends = range(0, len(read), self._ranks)
        lengths = [read[end : end + self._ranks] for end in ends]
        sent, received = lengths[: len(orders)], lengths[len(orders) :]
        ways = [exchanging(*both, self._group) for both in zip(sent, received, strict=True)]
        totals = zip(arriving, map(sum, received), strict=True)
        return ways, [_experts_of(part, total) for part, total in totals]


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _depart_pairs(
    tokens: Tensor, weights: Tensor, order: Order, way: Collective
) -> list[PendingCollective]:
    """Send each pair its token's row and its weight."""
    sorted_weights = weights.flatten().index_select(0, order.pairs)[:, None]
    return [async_start(spread(tokens, order), way), async_start(sorted_weights, way)]


def _experts_of(counts: Int[Tensor, "ranks experts"], total: int) -> Int[Tensor, "pairs 1"]:
    """Number the experts of rows that came rank by rank, each rank's by expert."""
    ids = torch.arange(counts.shape[1], device=counts.device).repeat(len(counts))
    return ids.repeat_interleave(counts.flatten(), output_size=total)[:, None]
