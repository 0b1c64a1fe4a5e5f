"""Ranks with parts of a model have the initial bits of one process."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from components.config.model_spec.initialization import NormalSpec
from components.distributed.broadcast_read import reads_for_stage
from components.distributed.data import shard_weights
from components.distributed.tensor import split_tensors
from components.distributed.weight_shards import get_local_part
from components.engine.parallelize import copy_weights, draw_weights
from components.model.decoder import Decoder
from tests.components.distributed import tensor_cases
from tests.components.distributed.layout_cases import FLOAT32, Layout, gather, layout_mesh
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import Parts, build

SEED = 11
PADDING_ROW = 1_500  # beyond the first block of rows
# The cutoff redraws a third of the numbers, so rows depend on rows of other ranks.
FIRST = NormalSpec(std=0.02, residual="scaled", padding_row=PADDING_ROW, cutoff=1.0)


class Filled(NamedTuple):
    """Names of different weights, the loss difference, and a rank's rows of the embedding."""

    different: list[str]
    loss: float
    rows: Tensor


def draw(parts: Parts, layout: Layout) -> Filled:
    """Draw the weights of a layout and of one process."""
    whole, decoder = _whole(parts), _parallelized(parts, layout)
    draw_weights(decoder, seed=SEED)
    return _compare(decoder, whole)


def take_over(parts: Parts, layout: Layout) -> Filled:
    """Copy weights from one rank into the layout."""
    whole, decoder = tensor_cases.randomized(parts).float(), _parallelized(parts, layout)
    mesh = layout_mesh(layout)
    with torch.device("meta"):
        outline = build(parts)
    copy_weights(decoder, whole if reads_for_stage(mesh) else outline, mesh)
    return _compare(decoder, whole)


def whole_rows(parts: Parts) -> Tensor:
    """Return the embedding as one process draws it."""
    embedding = _whole(parts).embedding
    assert embedding is not None
    return embedding.weight.detach()


def _whole(parts: Parts) -> Decoder:
    whole = build(parts)
    whole.initialization = FIRST
    draw_weights(whole, seed=SEED)
    return whole


def _parallelized(parts: Parts, layout: Layout) -> Decoder:
    mesh = layout_mesh(layout)
    with torch.device("meta"):
        decoder = build(parts)
    decoder.initialization = FIRST
    split_tensors(decoder, mesh.get_axis("tensor"), sequence_parallel=False)
    if layout.zero == 3:
        shard_weights(decoder, mesh, dtypes=FLOAT32)
    decoder.to_empty(device="cpu")
    with torch.no_grad():  # old memory could contain the right values
        for weight in decoder.parameters():
            get_local_part(weight).fill_(torch.nan)
    return decoder


def _compare(decoder: Decoder, whole: Decoder) -> Filled:
    """Compare all gathered weights, and the loss, which does not depend on gathering."""
    expected = dict(whole.named_parameters())
    different = [
        name
        for name, weight in decoder.named_parameters()
        if not torch.equal(gather(weight.detach()), expected[name])
    ]
    assert decoder.embedding is not None
    rows = get_local_part(decoder.embedding.weight).clone()
    tokens, targets, _ = tensor_cases.batch()
    with torch.no_grad():
        loss = tensor_cases.relative(
            decoder.compute_loss(tokens, targets), whole.compute_loss(tokens, targets)
        )
    return Filled(different, loss, rows)


LOSS_TOLERANCE = 1e-6  # in single precision, as weights are drawn

# 2,502 rows are three blocks; two data ranks share the 1,251 of a tensor rank unevenly.
PARTS = tensor_cases.GPT._replace(
    tied=False,
    qk_norm=tensor_cases.LAYER_NORM,
    embedding_norm=tensor_cases.LAYER_NORM,
    rows=2_502,
)
HALVES = [(0, 1_251), (1_251, 2_502)]
QUARTERS = [(0, 626), (1_251, 1_877), (626, 1_251), (1_877, 2_502)]
LAYOUTS = {
    "tensor": (Layout(tensor=2), HALVES),
    "zero 3": (Layout(shard=2, zero=3), HALVES),
    "tensor, zero 3": (Layout(shard=2, tensor=2, zero=3), QUARTERS),
    "replicas, zero 3": (Layout(replicate=2, shard=2, zero=3), HALVES * 2),
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.mark.quick("tied-tensor, zero 3")
@layouts
@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied"])
def test_drawn_rows_equal_the_rows_of_one_process(run_layout, layout, tied):
    parts, (degrees, rows) = PARTS._replace(tied=tied), LAYOUTS[layout]
    whole = whole_rows(parts)
    assert whole[1_500].abs().sum() == 0  # the padding row
    for filled, (first, last) in zip(run_layout(draw, parts, degrees), rows, strict=True):
        assert filled.different == []
        assert torch.equal(filled.rows, whole[first:last])
        assert filled.loss < LOSS_TOLERANCE


@pytest.mark.quick("tensor, zero 3")
@layouts
def test_copied_rows_equal_the_rows_of_one_process(run_layout, layout):
    degrees, rows = LAYOUTS[layout]
    for filled, (first, last) in zip(run_layout(take_over, PARTS, degrees), rows, strict=True):
        assert filled.different == []
        assert len(filled.rows) == last - first
        assert filled.loss < LOSS_TOLERANCE


def test_a_rank_without_a_row_draws_nothing(four_ranks: Ranks) -> None:
    parts = PARTS._replace(mlp=tensor_cases.GELU.model_copy(update={"ffn_dim": 3}))
    for filled in four_ranks(draw, parts, Layout(shard=4, zero=3)):
        assert filled.different == []
