"""Each rank's rows are those that a table says, share the weight's memory, and make a whole."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from components.distributed.weight_shards import get_local_part, make_shards, own_rows
from tests.components.distributed.layout_cases import Layout, gather, layout_mesh
from tests.components.distributed.ranks import Ranks


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


DATA = Layout(shard=2)
REPLICAS = Layout(replicate=2, shard=2)
BOTH = Layout(shard=2, tensor=2)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 9])
@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_own_rows_are_torchs_chunks_and_nothing_where_those_end(rows: int, pieces: int) -> None:
    weight = torch.arange(3 * rows).view(rows, 3)
    chunks = [*weight.chunk(pieces), *[weight[:0]] * pieces][:pieces]
    for index, chunk in enumerate(chunks):
        assert torch.equal(own_rows(weight, pieces, index), chunk)


@pytest.mark.parametrize(
    ("rows", "expected"), [(4, [[0, 1], [2, 3]]), (3, [[0, 1], [2]]), (1, [[0], []])]
)
def test_data_ranks_divide_rows(two_ranks: Ranks, rows: int, expected: list[list[int]]) -> None:
    made = two_ranks(make, DATA, rows, True, "plain", False)
    assert [rank.rows for rank in made] == expected
    assert all(rank.whole == list(range(rows)) for rank in made)
    assert all(rank.shares_memory for rank in made)
    assert [rank.replicas for rank in made] == [1, 1]


def test_unsplit_each_data_rank_has_a_copy(two_ranks: Ranks) -> None:
    for rank in two_ranks(make, DATA, 3, False, "plain", False):
        assert rank.rows == rank.whole == [0, 1, 2]
        assert rank.replicas == 2
        assert rank.shares_memory


def test_replicas_of_shards_are_counted(four_ranks: Ranks) -> None:
    made = four_ranks(make, REPLICAS, 3, True, "plain", False)
    assert [rank.rows for rank in made] == [[0, 1], [2], [0, 1], [2]]
    assert [rank.replicas for rank in made] == [2] * 4


@pytest.mark.parametrize(
    ("rows", "placement", "expected", "replicas"),
    [
        # Tensor ranks halve the rows, data ranks halve the halves; ranks count tensor first.
        (8, "rows", [[0, 1], [4, 5], [2, 3], [6, 7]], 1),
        (10, "rows", [[0, 1, 2], [5, 6, 7], [3, 4], [8, 9]], 1),
        (2, "rows", [[0], [1], [], []], 1),
        (3, "columns", [[0, 1], [0, 1], [2], [2]], 1),
        (3, "replicated", [[0, 1], [0, 1], [2], [2]], 2),
    ],
    ids=["even", "uneven", "too few", "columns", "replicated"],
)
def test_data_ranks_divide_what_tensor_ranks_left(
    four_ranks: Ranks, rows: int, placement: str, expected: list[list[int]], replicas: int
) -> None:
    made = four_ranks(make, BOTH, rows, True, placement, False)
    assert [rank.rows for rank in made] == expected
    assert all(rank.whole == list(range(rows)) for rank in made)
    assert all(rank.shares_memory for rank in made)
    assert [rank.replicas for rank in made] == [replicas] * 4


def test_unsplit_tensor_ranks_keep_their_parts(four_ranks: Ranks) -> None:
    made = four_ranks(make, BOTH, 4, False, "rows", False)
    assert [rank.rows for rank in made] == [[0, 1], [2, 3]] * 2
    assert [rank.replicas for rank in made] == [2] * 4


@pytest.mark.parametrize(("tied", "replicas"), [(False, 2), (True, 4)])
def test_two_stages_of_a_tied_weight_are_replicas(
    four_ranks: Ranks, tied: bool, replicas: int
) -> None:
    layout = Layout(pipeline=2, shard=2)
    made = four_ranks(make, layout, 4, False, "plain", tied)
    assert [rank.replicas for rank in made] == [replicas] * 4
