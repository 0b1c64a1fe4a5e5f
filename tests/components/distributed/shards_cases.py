"""What shards of a layout are, by numbers that a test can write out."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from components.distributed.weight_shards import get_local_part, make_shards
from tests.components.distributed.layout_cases import Layout, gather, layout_mesh


class Made(NamedTuple):
    """One shard: its rows, and what the whole is put together to from all ranks' shards."""

    rows: list[int]
    whole: list[int]
    replicas: int
    shares_memory: bool


def make(layout: Layout, rows: int, split: bool, placement: str, tied: bool) -> Made:
    """Make the shard of a weight whose rows, of two numbers each, are numbered from 0."""
    mesh = layout_mesh(layout)
    numbers = torch.arange(rows, dtype=torch.float64).repeat_interleave(2).view(rows, 2)
    weight = _placed(numbers, layout, placement)
    stage = nn.Module()
    stage.weight = weight
    named = ("weight",) if tied else ()
    ((shard,),) = make_shards([stage], mesh, split=split, weights=weight.dtype, tied=named)
    assert shard.name == "weight"
    assert shard.whole_shape == (rows, 2)
    assert shard.tied == tied
    whole = gather(shard.to_dtensor(shard.parameter.detach()))
    with torch.no_grad():
        before = get_local_part(weight).clone()
        shard.parameter.add_(1)
        moved = (get_local_part(weight) - before).sum() == shard.parameter.numel()
    return Made(_rows(shard.parameter.detach() - 1), _rows(whole), shard.replicas, bool(moved))


def _placed(numbers: Tensor, layout: Layout, placement: str) -> nn.Parameter:
    if placement == "plain":
        return nn.Parameter(numbers)
    mesh = layout_mesh(layout)
    axis = mesh.get_axis("tensor")
    kinds: dict[str, Placement] = {
        "rows": Shard(0),
        "columns": Shard(1),
        "replicated": Replicate(),
    }
    kind = kinds[placement]
    part = numbers
    if isinstance(kind, Shard):
        part = numbers.chunk(axis.size(), dim=kind.dim)[axis.get_local_rank()].clone()
    return nn.Parameter(DTensor.from_local(part, axis, [kind], run_check=False))


def _rows(numbers: Tensor) -> list[int]:
    return [int(row[0]) for row in numbers]
