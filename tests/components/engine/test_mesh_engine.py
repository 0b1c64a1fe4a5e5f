"""The mesh engine clips by the norm over all ranks, whatever a layout cuts."""

import pytest

from tests.components.distributed.layout_cases import Layout
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import Parts
from tests.components.engine.mesh_engine_cases import clipped_steps, goes_on_with_its_scale

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


def test_a_loss_scale_goes_on_from_its_state(two_ranks: Ranks) -> None:
    assert two_ranks(goes_on_with_its_scale, Parts(), LAYOUTS["zero 1"]) == [True, True]
