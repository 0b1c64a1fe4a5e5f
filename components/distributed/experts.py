"""Expert parallelism: each rank holds a part of every layer's experts; sums of their routers.

The ranks of the axis read different samples, as data ranks do, and have all other weights in
copies. Tokens reach their experts in one of two ways, whose costs are in docs/experts.md:

    all_gather    every rank gets all tokens, a reduce-scatter adds the results up (Optimus,
                  https://arxiv.org/abs/2604.00785, section 3.1)
    all_to_all    a token goes to a rank once for each of its experts there
                  (https://arxiv.org/abs/2006.16668, section 3.2, without its capacity)

A balance of all layers pooled is known at the last stage only: each stage hands its sums to the
next one beside the hidden states, and the gradient comes back along the same way.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from typing_extensions import override

from components.distributed.collectives import Collective, exchanging, gather_rows, gathering
from components.distributed.tensor_lending import lend, part_of, place_parameters
from components.distributed.tensor_styles import sum_over
from components.model import expert_products
from components.model.decoder import Decoder
from components.model.expert_products import Matrices, Order, dealt, spread, summed
from components.model.kept import kept, passing_on
from components.model.moe import Mixture, Stack, expert_layers, take_rows
from components.model.routing import RoutingTally


def take_tally(
    decoder: Decoder, carried: Float[Tensor, "numbers"] | None, context: DeviceMesh | None
) -> RoutingTally | None:
    """Take what a stage's routers did in the forward pass just done, if it was training.

    ``carried`` are the sums of the stages before; ``context`` ranks have parts of a sequence.
    """
    rows = take_rows(expert_layers(decoder))
    if rows is None:
        return None
    if context is not None and context.size() > 1:
        rows = sum_over(rows, context.get_group())
    tally = RoutingTally.of(rows)
    return tally if carried is None else tally.after(carried)


def figures_of(decoder: Decoder, tally: RoutingTally | None, loss: Tensor) -> Tensor:
    """Return the loss, the auxiliary loss, and the fullest expert's load over the mean."""
    if tally is None:
        return torch.stack([loss, torch.zeros_like(loss), torch.ones_like(loss)])
    auxiliary = expert_layers(decoder)[0].penalty(tally)
    return torch.stack([loss, auxiliary.to(loss), tally.largest_over_mean.to(loss)])


Dispatch = Literal["all_gather", "all_to_all"]


def split_experts(
    decoder: Decoder, mesh: DeviceMesh, *, dispatch: Dispatch, overlap: int
) -> None:
    """Apply expert parallelism to a decoder or a stage of one; ``mesh`` has one axis.

    The stacks of matrices become DTensors of that axis under their old names. They may be on
    ``meta``; elsewhere all ranks must hold the same values. One rank changes nothing.
    """
    if mesh.size() == 1:
        return
    for layer in expert_layers(decoder):
        stacks = [stack for stack in layer.children() if isinstance(stack, Stack)]
        assert len(stacks[0].weight) % mesh.size() == 0, "the recipe's rules see to it"
        for stack in stacks:
            place_parameters(stack, mesh, Shard(0))
        lend(layer, lambda name, stack: part_of(stack), owners=stacks)
        kind = GatheredMixture if dispatch == "all_gather" else ExchangedMixture
        layer.mixture = kind(layer.mixture, mesh, overlap=overlap)


class SplitMixture(Mixture):
    """Bring tokens and experts together, let ``mixture`` compute, and bring results back.

    Tokens go in ``overlap`` parts, all at once: while one is computed, others are under way,
    in the backward pass too (https://arxiv.org/abs/2206.03382).
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
        self, tokens: Tensor, weights: Tensor, experts: Tensor, matrices: Matrices
    ) -> Tensor:
        there = gathering(self._group)
        parts = zip(self._split(tokens), self._split(weights), strict=True)
        departed = [[there.async_start(rows) for rows in part] for part in parts]
        with torch.no_grad():
            chosen = gather_rows(experts, self._group) - self._rank * len(matrices.up)
        chosen = chosen.view(self._ranks, *experts.shape)
        matrices = matrices._replace(parts=self._ranks)
        returning = []
        for given, ids in zip(departed, self._split(chosen, 1), strict=True):
            arriving = (rows.async_wait() for rows in given)
            mixed = self.mixture(*arriving, ids.flatten(0, 1), matrices)
            # As wide as the tokens came, as Optimus sends them; the sums were taken wider.
            returning.append(there.reversed().async_start(mixed.to(tokens.dtype)))
        return _joined([passing_on(rows.async_wait()) for rows in returning])


class ExchangedMixture(SplitMixture):
    """Send each token to the ranks of its experts."""

    @override
    def forward(
        self, tokens: Tensor, weights: Tensor, experts: Tensor, matrices: Matrices
    ) -> Tensor:
        orders = [
            Order.of(ids, num_experts=len(matrices.up) * self._ranks, parts=1)
            for ids in self._split(experts)
        ]
        exchanges, arriving = self._plan_exchanges(orders)
        parts = zip(self._split(tokens), self._split(weights), orders, exchanges, strict=True)
        departed = [
            [
                exchange.async_start(spread(part, order)),
                exchange.async_start(of_part.flatten().index_select(0, order.pairs)[:, None]),
            ]
            for part, of_part, order, exchange in parts
        ]
        returning = []
        for given, ids, exchange in zip(departed, arriving, exchanges, strict=True):
            mixed = self.mixture(*[rows.async_wait() for rows in given], ids, matrices)
            returning.append(exchange.reversed().async_start(mixed.to(tokens.dtype)))
        return _joined([
            summed(passing_on(rows.async_wait()), order, len(order.pairs) // experts.shape[1])
            for rows, order in zip(returning, orders, strict=True)
        ])

    def _plan_exchanges(
        self, orders: Sequence[Order]
    ) -> tuple[list[Collective], list[Int[Tensor, "pairs 1"]]]:
        """Exchange counts, at once for all parts: each part's exchange, its pairs' experts."""
        counts = torch.stack([order.counts for order in orders])
        leaving = counts.view(len(orders), self._ranks, -1).transpose(0, 1).contiguous()
        arriving = kept(lambda: self._exchanged(leaving))
        arriving, leaving = arriving.transpose(0, 1), leaving.transpose(0, 1)
        even = [n for order in orders for n in dealt(len(order.pairs), self._ranks)]
        pairs = torch.stack([leaving, arriving]).sum(-1).flatten()
        read = expert_products.on_host(pairs, even=even * 2)
        ends = range(0, len(read), self._ranks)
        lengths = [read[end : end + self._ranks] for end in ends]
        sent, received = lengths[: len(orders)], lengths[len(orders) :]
        pairs_of = zip(sent, received, strict=True)
        exchanges = [exchanging(*numbers, self._group) for numbers in pairs_of]
        totals = zip(arriving, map(sum, received), strict=True)
        return exchanges, [_experts_of(part, total) for part, total in totals]

    def _exchanged(self, counts: Tensor) -> Tensor:
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self._group)
        return arriving


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _experts_of(counts: Int[Tensor, "ranks experts"], total: int) -> Int[Tensor, "pairs 1"]:
    """Number the experts of rows that came rank by rank, each rank's by expert."""
    ids = torch.arange(counts.shape[1], device=counts.device).repeat(len(counts))
    return ids.repeat_interleave(counts.flatten(), output_size=total)[:, None]
