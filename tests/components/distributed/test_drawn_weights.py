"""A rank that holds parts starts with the bits that one process gives the whole."""

import pytest
import torch

from components.config.model_spec.positions import LearnedSpec
from tests.components.distributed.filling_cases import draw, take_over, whole_rows
from tests.components.distributed.layout_cases import Layout
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import GELU, LAYER_NORM, LENGTH, Parts

LOSS_TOLERANCE = 1e-6  # in single precision, as weights are drawn

# 2,502 rows are three blocks; two data ranks share the 1,251 of a tensor rank unevenly.
PARTS = Parts(
    num_kv_heads=8,
    bias=True,
    qk_norm=LAYER_NORM,
    positions=LearnedSpec(num_positions=LENGTH),
    mlp=GELU,
    norm=LAYER_NORM,
    embedding_norm=LAYER_NORM,
    rows=2_502,
)
layouts = pytest.mark.parametrize(
    ("layout", "rows"),
    [
        (Layout(tensor=2), [(0, 1_251), (1_251, 2_502)]),
        (Layout(shard=2, zero=3), [(0, 1_251), (1_251, 2_502)]),
        (
            Layout(shard=2, tensor=2, zero=3),
            [(0, 626), (1_251, 1_877), (626, 1_251), (1_877, 2_502)],
        ),
        (Layout(replicate=2, shard=2, zero=3), [(0, 1_251), (1_251, 2_502)] * 2),
    ],
    ids=["tensor", "zero 3", "tensor, zero 3", "replicas, zero 3"],
)
ends = pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied"])


@pytest.mark.quick("tied-tensor, zero 3")
@layouts
@ends
def test_drawn_rows_are_those_of_the_whole(
    two_ranks: Ranks,
    four_ranks: Ranks,
    layout: Layout,
    rows: list[tuple[int, int]],
    tied: bool,
) -> None:
    parts = PARTS._replace(tied=tied)
    ranks = two_ranks if len(rows) == 2 else four_ranks
    whole = whole_rows(parts)
    assert whole[1_500].abs().sum() == 0  # the padding row
    for filled, (first, last) in zip(ranks(draw, parts, layout), rows, strict=True):
        assert filled.different == []
        assert torch.equal(filled.rows, whole[first:last])
        assert filled.loss < LOSS_TOLERANCE


@pytest.mark.quick("tensor, zero 3")
@layouts
def test_copied_rows_are_those_of_the_whole(
    two_ranks: Ranks, four_ranks: Ranks, layout: Layout, rows: list[tuple[int, int]]
) -> None:
    ranks = two_ranks if len(rows) == 2 else four_ranks
    for filled, (first, last) in zip(ranks(take_over, PARTS, layout), rows, strict=True):
        assert filled.different == []
        assert len(filled.rows) == last - first
        assert filled.loss < LOSS_TOLERANCE


def test_a_rank_without_a_row_draws_nothing(four_ranks: Ranks) -> None:
    parts = PARTS._replace(mlp=GELU.model_copy(update={"ffn_dim": 3}))
    for filled in four_ranks(draw, parts, Layout(shard=4, zero=3)):
        assert filled.different == []
