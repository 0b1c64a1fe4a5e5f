"""Ranks agree on a step's figures, each with numbers of its own."""

from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist

from components.train.step_metrics import reduce_step_metrics


def agreed(digests: list[int], asks: int | None, engine_knows: bool) -> dict[str, Any]:
    """Agree; rank r has (r, 2 r, 3 r, 5 r, 7 r) of the means and 4 r of the squared norm."""
    rank = dist.get_rank()
    found = reduce_step_metrics(
        torch.tensor([1.0, 2.0, 3.0, 5.0, 7.0], dtype=torch.float64) * rank,
        squares=torch.tensor(4.0 * rank) if engine_knows else None,
        stop=rank == asks,
        samples_digest=digests[rank],
        own=torch.tensor([rank, 10.0], dtype=torch.float64),
    )
    return {**asdict(found), "norm": found.norm.item(), "own_sums": found.own_sums.tolist()}
