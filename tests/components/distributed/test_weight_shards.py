"""Shards have the rows of a table, share the memory of the weight, and add up to it."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from components.distributed.weight_shards import get_local_part, make_shards, own_rows
from tests.components.distributed.layout_cases import Layout, gather, layout_mesh


class Made(NamedTuple):
    """The rows of one shard, and the whole weight gathered from all ranks."""

    rows: list[int]
    whole: list[int]
    replicas: int
    shares_memory: bool


def make(layout: Layout, rows: int, split: bool, placement: str, tied: bool) -> Made:
    """Make the shard of a weight with numbered rows of two numbers."""
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
    axis = layout_mesh(layout).get_axis("tensor")
    kinds = {"rows": Shard(0), "columns": Shard(1), "replicated": Replicate()}
    placed = distribute_tensor(numbers, axis, [kinds[placement]], src_data_rank=None)
    return nn.Parameter(placed)


def _rows(numbers: Tensor) -> list[int]:
    return [int(row[0]) for row in numbers]


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 9])
@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_own_rows_equal_torchs_chunks(rows: int, pieces: int) -> None:
    weight = torch.arange(3 * rows).view(rows, 3)
    chunks = [*weight.chunk(pieces), *[weight[:0]] * pieces][:pieces]
    for index, chunk in enumerate(chunks):
        assert torch.equal(own_rows(weight, pieces, index), chunk)


DATA = Layout(shard=2)
REPLICAS = Layout(replicate=2, shard=2)
BOTH = Layout(shard=2, tensor=2)
ENDS = Layout(pipeline=2, shard=2)
# Layout, rows, split or not, placement, the rows of each rank, and the replicas.
# Tensor ranks halve the rows, then data ranks; tensor is the innermost axis.
CASES: dict[str, tuple[Layout, int, bool, str, list[list[int]], int]] = {
    "even": (DATA, 4, True, "plain", [[0, 1], [2, 3]], 1),
    "uneven": (DATA, 3, True, "plain", [[0, 1], [2]], 1),
    "one row": (DATA, 1, True, "plain", [[0], []], 1),
    "unsplit": (DATA, 3, False, "plain", [[0, 1, 2]] * 2, 2),
    "replicas of shards": (REPLICAS, 3, True, "plain", [[0, 1], [2]] * 2, 2),
    "even, tensor": (BOTH, 8, True, "rows", [[0, 1], [4, 5], [2, 3], [6, 7]], 1),
    "uneven, tensor": (BOTH, 10, True, "rows", [[0, 1, 2], [5, 6, 7], [3, 4], [8, 9]], 1),
    "too few, tensor": (BOTH, 2, True, "rows", [[0], [1], [], []], 1),
    "columns, tensor": (BOTH, 3, True, "columns", [[0, 1], [0, 1], [2], [2]], 1),
    "replicated, tensor": (BOTH, 3, True, "replicated", [[0, 1], [0, 1], [2], [2]], 2),
    "unsplit, tensor": (BOTH, 4, False, "rows", [[0, 1], [2, 3]] * 2, 2),
    "ends": (ENDS, 4, False, "plain", [[0, 1, 2, 3]] * 4, 2),
    "tied ends": (ENDS, 4, False, "plain", [[0, 1, 2, 3]] * 4, 4),
}


@pytest.mark.parametrize("case", CASES)
def test_ranks_have_the_rows_and_replicas_of_the_table(two_ranks, four_ranks, case):
    layout, rows, split, placement, expected, replicas = CASES[case]
    ranks = two_ranks if layout.ranks == 2 else four_ranks
    made = ranks(make, layout, rows, split, placement, "tied" in case)
    assert [rank.rows for rank in made] == expected
    for rank in made:
        assert rank.whole == list(range(rows))
        assert rank.replicas == replicas
        assert rank.shares_memory
