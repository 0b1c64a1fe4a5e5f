"""Weights in 16 bits beside masters in float32: the same bits as steps written out by hand."""

from pathlib import Path

import pytest

from tests.components.distributed.layout_cases import Layout
from tests.components.distributed.precision_cases import (
    bytes_of,
    differ_from_steps_by_hand,
    goes_on,
    moves,
)
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import Parts
from tests.components.distributed.test_data import EVEN, THREE_ROWS

MIXED = Layout(shard=2, weights="bfloat16", accumulate="float32", reduce="float32")
PLAIN = Layout(shard=2, accumulate="float32", reduce="float32")
FEW_ELEMENTS = 1_000


@pytest.mark.quick("1-even-one bucket", "2-three rows-many", "3-even-many")
@pytest.mark.parametrize(
    ("zero", "parts", "elements"),
    [
        pytest.param(0, EVEN, FEW_ELEMENTS, id="0-even-many"),
        pytest.param(1, EVEN, 2**25, id="1-even-one bucket"),
        pytest.param(1, THREE_ROWS, FEW_ELEMENTS, id="1-three rows-many"),
        pytest.param(2, THREE_ROWS, FEW_ELEMENTS, id="2-three rows-many"),
        pytest.param(3, THREE_ROWS, 2**25, id="3-three rows-one bucket"),
        pytest.param(3, EVEN, FEW_ELEMENTS, id="3-even-many"),
    ],
)
def test_steps_have_the_bits_of_those_by_hand(
    two_ranks: Ranks, zero: int, parts: Parts, elements: int
) -> None:
    layout = MIXED._replace(zero=zero, bucket_elements=elements)
    assert two_ranks(differ_from_steps_by_hand, parts, layout) == [[], []]


def test_stages_without_data_ranks_have_masters_too(two_ranks: Ranks) -> None:
    layout = MIXED._replace(shard=1, pipeline=2)
    assert two_ranks(differ_from_steps_by_hand, EVEN, layout) == [[], []]


@pytest.mark.parametrize("zero", [1, 3])
def test_without_overlap_the_bits_are_the_same(two_ranks: Ranks, zero: int) -> None:
    layout = MIXED._replace(zero=zero, bucket_elements=FEW_ELEMENTS, overlaps=False)
    assert two_ranks(differ_from_steps_by_hand, EVEN, layout) == [[], []]


@pytest.mark.quick("1")
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a_run_goes_on_with_its_masters(two_ranks: Ranks, tmp_path: Path, zero: int) -> None:
    layout = MIXED._replace(zero=zero)
    assert two_ranks(goes_on, EVEN, layout, tmp_path) == [[], []]


@pytest.mark.quick("to rounded", "to plain")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (PLAIN._replace(zero=1), MIXED._replace(zero=2)),
        (MIXED._replace(zero=1), PLAIN),
        (MIXED._replace(zero=3), MIXED._replace(zero=1)),
        (MIXED, MIXED._replace(zero=3)),
    ],
    ids=["to rounded", "to plain", "from zero 3", "to zero 3"],
)
def test_a_checkpoint_moves_between_schemes(
    two_ranks: Ranks, tmp_path: Path, before: Layout, after: Layout
) -> None:
    assert two_ranks(moves, EVEN, before, after, tmp_path) == [[], []]


@pytest.mark.parametrize(
    ("layout", "expected"),
    [(PLAIN, (4, 0)), (MIXED, (2, 4)), (MIXED._replace(zero=1), (2, 2))],
    ids=["plain", "zero 0", "zero 1"],
)
def test_bytes_of_weights_and_masters_are_the_schemes(
    two_ranks: Ranks, layout: Layout, expected: tuple[float, float]
) -> None:
    for found in two_ranks(bytes_of, EVEN, layout):
        assert found == pytest.approx(expected, rel=0.02)
