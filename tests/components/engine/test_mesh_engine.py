"""The mesh engine clips by the norm over all ranks, whatever a layout cuts."""

import pytest

from tests.components.distributed.layout_cases import Layout
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import XIELU, Parts
from tests.components.engine.mesh_engine_cases import (
    ademamix,
    clipped_steps,
    goes_on_with_its_scale,
    muon,
)

# Double precision has 16 digits; sums in another order cost the last ones.
TOLERANCE = 1e-12
LAYOUTS = {
    "zero 0": Layout(shard=2),
    "zero 1": Layout(shard=2, zero=1),
    "zero 2": Layout(shard=2, zero=2),
    "tensor": Layout(tensor=2),
    "pipeline": Layout(pipeline=2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_that_are_clipped_equal_those_of_one_process(
    two_ranks: Ranks, layout: str
) -> None:
    for apart in two_ranks(clipped_steps, Parts(tied=True), LAYOUTS[layout], 0.3):
        assert apart < TOLERANCE


@pytest.mark.long
def test_four_ranks_of_two_axes_clip_as_one_process_does(four_ranks: Ranks) -> None:
    layout = Layout(tensor=2, shard=2, zero=1)
    for apart in four_ranks(clipped_steps, Parts(tied=True), layout, 0.3):
        assert apart < TOLERANCE


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_muon_of_shards_of_rows_is_muon_of_matrices(two_ranks: Ranks, zero: int) -> None:
    # The iteration enlarges small singular values, and their rounding, 485 times.
    for apart in two_ranks(clipped_steps, Parts(), Layout(shard=2, zero=zero), 0.3, muon):
        assert apart < 1e-9


@pytest.mark.parametrize("layout", ["tensor", "pipeline"])
def test_muon_of_cut_weights_is_muon_of_whole_ones(two_ranks: Ranks, layout: str) -> None:
    for apart in two_ranks(clipped_steps, Parts(tied=True), LAYOUTS[layout], 0.3, muon):
        assert apart < 1e-9


@pytest.mark.long
@pytest.mark.parametrize("zero", [1, 3])
def test_muon_of_both_is_muon_of_matrices(four_ranks: Ranks, zero: int) -> None:
    layout = Layout(tensor=2, shard=2, zero=zero)
    for apart in four_ranks(clipped_steps, Parts(), layout, 0.3, muon):
        assert apart < 1e-9


@pytest.mark.parametrize(
    "layout",
    [*(Layout(shard=2, zero=zero) for zero in (1, 2, 3)), Layout(tensor=2), Layout(pipeline=2)],
    ids=["zero 1", "zero 2", "zero 3", "tensor", "pipeline"],
)
def test_ademamix_of_shards_is_that_of_whole_weights(two_ranks: Ranks, layout: Layout) -> None:
    parts = Parts(mlp=XIELU)  # whose scalars some ranks have no part of
    for apart in two_ranks(clipped_steps, parts, layout, 0.3, ademamix):
        assert apart < 1e-11


@pytest.mark.long
def test_ademamix_of_both_is_that_of_whole_weights(four_ranks: Ranks) -> None:
    layout = Layout(tensor=2, shard=2, zero=3)
    for apart in four_ranks(clipped_steps, Parts(mlp=XIELU), layout, 0.3, ademamix):
        assert apart < 1e-11


def test_a_loss_scale_goes_on_from_its_state(two_ranks: Ranks) -> None:
    assert two_ranks(goes_on_with_its_scale, Parts(), LAYOUTS["zero 1"]) == [True, True]
