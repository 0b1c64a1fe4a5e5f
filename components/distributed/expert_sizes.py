"""Sizes of the messages between expert ranks: read on the host, or bounded beforehand.

Of a bounded message the sizes are known without the device: it has room for ``bound`` times an
even share of the pairs, and what is not filled is padding, which no product reads. Pairs that
have no room are counted; their results are wrong, and whoever asked must not use them.
"""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Int
from torch import Tensor

from components.distributed.collectives import Collective, exchanging
from components.model import expert_products
from components.model.expert_products import Order, dealt
from components.model.kept import kept


class ExchangePlan(NamedTuple):
    """For each part of the tokens: how rows leave and arrive, and the experts of those here."""

    orders: Sequence[Order]
    exchanges: Sequence[Collective]
    arriving: Sequence[Int[Tensor, "rows 1"]]
    beyond: Int[Tensor, ""] | None  # pairs without room; None where there is room for all


def read_sizes(orders: Sequence[Order], group: dist.ProcessGroup) -> ExchangePlan:
    """Exchange counts, at once for all parts, and read on the host what they add up to."""
    ranks = dist.get_world_size(group)
    counts = torch.stack([order.counts for order in orders])
    leaving = counts.view(len(orders), ranks, -1)
    arriving = _exchanged(leaving.transpose(0, 1), group).transpose(0, 1)
    even = [n for order in orders for n in dealt(len(order.pairs), ranks)]
    pairs = torch.stack([leaving, arriving]).sum(-1).flatten()
    read = expert_products.on_host(pairs, even=even * 2)
    lengths = [read[end : end + ranks] for end in range(0, len(read), ranks)]
    sent, received = lengths[: len(orders)], lengths[len(orders) :]
    exchanges = [exchanging(*both, group) for both in zip(sent, received, strict=True)]
    totals = zip(arriving, map(sum, received), strict=True)
    return ExchangePlan(
        orders, exchanges, [_experts_of(part, total) for part, total in totals], None
    )


def bounded_sizes(
    orders: Sequence[Order], group: dist.ProcessGroup, bound: float
) -> ExchangePlan:
    """Pad every message to `bounded_rows`; its first pairs go, by their experts' numbers."""
    ranks = dist.get_world_size(group)
    rows = [bounded_rows(len(order.pairs), ranks, bound) for order in orders]
    wanted = [order.counts.view(ranks, -1) for order in orders]
    parts = list(zip(wanted, rows, strict=True))
    ends = torch.stack([counts.cumsum(1).clamp(max=most) for counts, most in parts], 1)
    arriving = _exchanged(ends, group).unbind(1)
    return ExchangePlan(
        [_padded(order, *part) for order, part in zip(orders, parts, strict=True)],
        [exchanging([most] * ranks, [most] * ranks, group) for most in rows],
        [_padded_experts(*both) for both in zip(arriving, rows, strict=True)],
        torch.stack(wanted).sum() - ends[..., -1].sum(),
    )


def bounded_rows(pairs: int, ranks: int, bound: float) -> int:
    """Count the rows of a message: all pairs at most, which is what a bound of ``ranks`` is."""
    return min(pairs, ceil(bound * pairs / ranks))


def _exchanged(numbers: Tensor, group: dist.ProcessGroup) -> Tensor:
    def exchange() -> Tensor:
        arriving = numbers.new_empty(numbers.shape)
        dist.all_to_all_single(arriving, numbers.contiguous(), group=group)
        return arriving

    return kept(exchange)


def _experts_of(counts: Int[Tensor, "ranks experts"], total: int) -> Int[Tensor, "rows 1"]:
    """Number the experts of rows that came rank by rank, each rank's by expert."""
    ids = torch.arange(counts.shape[1], device=counts.device).repeat(len(counts))
    return ids.repeat_interleave(counts.flatten(), output_size=total)[:, None]


def _padded_experts(ends: Int[Tensor, "ranks experts"], rows: int) -> Int[Tensor, "rows 1"]:
    """Number the same of so many rows from each rank; padding has the number after the last."""
    places = torch.arange(rows, device=ends.device).repeat(len(ends), 1)
    return torch.searchsorted(ends.contiguous(), places, right=True).view(-1, 1)


def _padded(order: Order, counts: Int[Tensor, "ranks experts"], rows: int) -> Order:
    """Give each rank ``rows`` rows; pairs without room share its last one.

    Padding repeats some token, so what is sent is finite; nothing may be read of it.
    """
    pairs = torch.arange(len(order.pairs), device=counts.device)  # as they are sorted
    ends = counts.sum(1).cumsum(0)
    begins = ends - counts.sum(1)
    rank = torch.searchsorted(ends, pairs, right=True)
    within = (pairs - begins.index_select(0, rank)).clamp(max=rows - 1)
    places = torch.empty_like(pairs).scatter_(0, order.pairs, rank * rows + within)
    sent = (begins[:, None] + pairs[:rows]).flatten().clamp(max=len(pairs) - 1)
    return order._replace(
        pairs=order.pairs.index_select(0, sent),
        tokens=order.tokens.index_select(0, sent),
        places=places,
    )
