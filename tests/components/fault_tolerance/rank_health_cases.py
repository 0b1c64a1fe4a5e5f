"""What ranks do in the tests of their health: count energy, flip a bit and compare weights."""

from pathlib import Path

import torch
import torch.distributed as dist

from components.distributed.mesh import sum_over_ranks
from components.distributed.weight_shards import get_local_part
from components.energy.counters import FileCounter, Meter
from components.fault_tolerance import rank_health
from tests.components.distributed.layout_cases import Layout, ParallelModel
from tests.components.distributed.tensor_cases import Parts, randomized

CPU = torch.device("cpu")


def told(folder: Path) -> list[rank_health.RankReport | None]:
    """Take three steps, figures told at every second; rank r spends r joules in each.

    The first meter has a device for each rank, the last rank's without a counter; the second
    has a host, the first rank's.
    """
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    file = folder / f"energy-{rank}"
    file.write_text("0\n")
    counter = FileCounter(file=file, range_joules=1e9, longest_seconds=1e9)
    figures = rank_health.RankFigures(every_steps=2)
    figures.meters = [
        Meter(counters=[] if rank == last else [counter], units=1, now=0.0),
        Meter(counters=[], units=1 if rank == 0 else 0, now=0.0),
    ]
    found = []
    for step in range(1, 4):
        file.write_text(f"{step * rank * 1_000_000}\n")
        figures.record_seconds(0.1 * (rank + 1))
        figures.update_report(sum_over_ranks(figures.build_summand(step=step, device=CPU)))
        found.append(figures.last_report)
    return found


def compared(
    parts: Parts, layout: Layout, flips: tuple[tuple[str, int], ...]
) -> list[rank_health.ReplicaDifference]:
    """Flip the lowest bit of the last number of each named weight on its rank, then compare."""
    sharded = ParallelModel(randomized(parts), layout)
    for name, rank in flips:
        for shard in sharded.shards:
            if shard.name == name and torch.distributed.get_rank() == rank:
                bits = get_local_part(shard.weight).view(-1)[-1:].view(torch.int64)
                bits ^= 1
    return rank_health.compare_replicas(sharded.shards, sharded.mesh)
