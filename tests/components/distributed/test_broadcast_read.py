"""Whoever holds a tensor alike gets its own numbers from the one rank that reads them."""

import pytest

from tests.components.distributed import broadcast_read_cases as cases
from tests.components.distributed.ranks import Ranks

layouts = pytest.mark.parametrize(
    "axes",
    [
        {"data_shard": 4},
        {"data_replicate": 2, "data_shard": 2},
        {"data_shard": 2, "context": 2},
        {"data_replicate": 2, "context": 2},
        {"data_shard": 2, "tensor": 2},
        {"context": 2, "tensor": 2},
        {"expert": 2, "data_shard": 2},
        {"expert": 2, "context": 2},
        {"pipeline": 2, "data_shard": 2},
    ],
    ids=lambda axes: " ".join(axes),
)


@pytest.mark.parametrize("splits", [False, True], ids=["whole", "split"])
@layouts
def test_every_rank_gets_the_numbers_that_it_holds(
    four_ranks: Ranks, axes: cases.Axes, splits: bool
) -> None:
    assert four_ranks(cases.hold_alike, axes, splits) == [[]] * 4


@pytest.mark.parametrize("splits", [False, True], ids=["whole", "split"])
@layouts
def test_every_number_is_read_once_in_each_stage_and_on_each_tensor_rank(
    four_ranks: Ranks, axes: cases.Axes, splits: bool
) -> None:
    (counts,) = {tuple(one.items()) for one in four_ranks(cases.count_readers, axes, splits)}
    for name, numbers in counts:
        alike = axes.get("pipeline", 1)  # here both stages hold the same
        if not name.startswith("tensor"):
            alike *= axes.get("tensor", 1)
        assert numbers == 120 * alike, name


@pytest.mark.parametrize(
    ("axes", "readers"),
    [
        ({"data_shard": 4}, [0]),
        ({"data_replicate": 2, "tensor": 2}, [0]),
        ({"expert": 2, "context": 2}, [0]),
        ({"pipeline": 2, "data_shard": 2}, [0, 2]),
        ({"pipeline": 4}, [0, 1, 2, 3]),
    ],
)
def test_what_one_rank_of_a_stage_has_all_of_it_get(
    four_ranks: Ranks, axes: cases.Axes, readers: list[int]
) -> None:
    found = four_ranks(cases.spread, axes)
    assert [rank for rank, (had, _) in enumerate(found) if had] == readers
    per_stage = 4 // axes.get("pipeline", 1)
    assert [value for _, value in found] == [10.0 + rank // per_stage for rank in range(4)]
