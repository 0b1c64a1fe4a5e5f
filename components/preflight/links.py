"""Each node with two others, one pair at a time: who is slow with both is slow itself."""

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # not in its __all__

from components.config.schema.sections import Cluster
from components.distributed.devices import device_type, group_backend
from components.preflight.devices import bus_bandwidth, large_bytes, median_seconds

Pair = tuple[int, int]
Rates = dict[str, float | None]  # gigabytes a second, by the other node; None: no answer


def rounds_of_pairs(count: int) -> list[list[Pair]]:
    """Deal the neighbours of a ring of ``count`` nodes to rounds in which each meets one.

    Two rounds, three for an odd number of nodes.
    """
    if count < 2:
        return []
    if count == 2:
        return [[(0, 1)]]
    even = [(first, first + 1) for first in range(0, count - 1, 2)]
    odd = [(first, first + 1) for first in range(1, count - 1, 2)]
    closing = (0, count - 1)
    return [even, [*odd, closing]] if count % 2 == 0 else [even, odd, [closing]]


def link_device(cluster: Cluster) -> torch.device:
    """Choose the first device of a node; the host on Intel's GPUs.

    Where oneCCL takes its ranks from MPI, as on Aurora, it knows of no groups of two.
    """
    kind = device_type(cluster.device)
    return torch.device(kind, 0) if kind == "cuda" else torch.device("cpu")


def measure_links(
    names: Sequence[str], own: str, store: Store, device: torch.device, seconds: float
) -> Rates:
    """Measure an all-reduce with each neighbour.

    A round waits ``seconds`` longer than the one before: whoever waited for a dead node there
    comes late to the next.
    """
    me, found = names.index(own), Rates()
    for number, pairs in enumerate(rounds_of_pairs(len(names)), start=1):
        for pair in pairs:
            if me in pair:
                other = names[pair[1 - pair.index(me)]]
                found[other] = _meet(pair, pair.index(me), store, device, number * seconds)
    return found


def _meet(
    pair: Pair, rank: int, store: Store, device: torch.device, seconds: float
) -> float | None:
    size = large_bytes(device.type)
    try:
        dist.init_process_group(
            group_backend(device.type),
            store=PrefixStore(f"link/{pair[0]}-{pair[1]}", store),
            rank=rank,
            world_size=2,
            timeout=timedelta(seconds=seconds),
        )
        numbers = torch.ones(size // 4, device=device)
        took = median_seconds(lambda: dist.all_reduce(numbers), device)
    except RuntimeError:  # what every back end raises where the other does not come
        return None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return bus_bandwidth("all_reduce", 2, size, took) / 1e9
