"""Sizes of the messages between expert ranks: read on the host, or bounded in advance.

The host knows the size of a bounded message: ``bound`` times an even share of the pairs, with
padding that no product reads. Results of pairs that do not fit are wrong: check their count.
"""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Int
from torch import Tensor

from components.distributed.collectives import Collective, make_exchange
from components.model import expert_products
from components.model.checkpoint_storage import compute_once
from components.model.expert_products import Order, split_evenly


class ExchangePlan(NamedTuple):
    """Sent rows' order, exchange and received rows' experts, for each part of the tokens."""

    orders: Sequence[Order]
    exchanges: Sequence[Collective]
    arriving: Sequence[Int[Tensor, "rows 1"]]
    beyond: Int[Tensor, ""] | None  # number of pairs that do not fit; None without a bound


def read_sizes(orders: Sequence[Order], group: dist.ProcessGroup) -> ExchangePlan:
    """Exchange the counts of all parts at once, and read their sums on the host."""
    ranks = dist.get_world_size(group)
    counts = torch.stack([order.counts for order in orders])
    leaving = counts.view(len(orders), ranks, -1)
    arriving = _exchanged(leaving.transpose(0, 1), group).transpose(0, 1)
    even = [n for order in orders for n in split_evenly(len(order.pairs), ranks)]
    pairs = torch.stack([leaving, arriving]).sum(-1).flatten()
    read = expert_products.on_host(pairs, even=even * 2)
    lengths = [read[end : end + ranks] for end in range(0, len(read), ranks)]
    sent, received = lengths[: len(orders)], lengths[len(orders) :]
    exchanges = [make_exchange(*both, group) for both in zip(sent, received, strict=True)]
    totals = zip(arriving, map(sum, received), strict=True)
    return ExchangePlan(
        orders, exchanges, [_experts_of(part, total) for part, total in totals], None
    )


def bounded_sizes(
    orders: Sequence[Order], group: dist.ProcessGroup, bound: float
) -> ExchangePlan:
    """Pad or cut every message to `bounded_rows`; pairs of the lowest experts come first."""
    ranks = dist.get_world_size(group)
    rows = [bounded_rows(len(order.pairs), ranks, bound) for order in orders]
    wanted = [order.counts.view(ranks, -1) for order in orders]
    parts = list(zip(wanted, rows, strict=True))
    ends = torch.stack([counts.cumsum(1).clamp(max=most) for counts, most in parts], 1)
    arriving = _exchanged(ends, group).unbind(1)
    return ExchangePlan(
        [_padded(order, *part) for order, part in zip(orders, parts, strict=True)],
        [make_exchange([most] * ranks, [most] * ranks, group) for most in rows],
        [_padded_experts(*both) for both in zip(arriving, rows, strict=True)],
        torch.stack(wanted).sum() - ends[..., -1].sum(),
    )


def bounded_rows(pairs: int, ranks: int, bound: float) -> int:
    """Return the rows of a message: at most all pairs, which equals a bound of ``ranks``."""
    return min(pairs, ceil(bound * pairs / ranks))


def _exchanged(numbers: Tensor, group: dist.ProcessGroup) -> Tensor:
    def exchange_counts() -> Tensor:
        arriving = numbers.new_empty(numbers.shape)
        dist.all_to_all_single(arriving, numbers.contiguous(), group=group)
        return arriving

    return compute_once(exchange_counts)


def _experts_of(counts: Int[Tensor, "ranks experts"], total: int) -> Int[Tensor, "rows 1"]:
    """Return the expert of each received row; rows are sorted by rank, then by expert."""
    ids = torch.arange(counts.shape[1], device=counts.device).repeat(len(counts))
    return ids.repeat_interleave(counts.flatten(), output_size=total)[:, None]


def _padded_experts(ends: Int[Tensor, "ranks experts"], rows: int) -> Int[Tensor, "rows 1"]:
    """Return the expert of each of ``rows`` rows per rank; padding has the last number + 1."""
    places = torch.arange(rows, device=ends.device).repeat(len(ends), 1)
    return torch.searchsorted(ends.contiguous(), places, right=True).view(-1, 1)


def _padded(order: Order, counts: Int[Tensor, "ranks experts"], rows: int) -> Order:
    """Return an order with ``rows`` rows per rank; pairs that do not fit share the last row.

    Padding repeats a token, so its values are finite. Nothing may read the padding.
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
