"""Multi-token prediction trains in every layout as on one process."""

import pytest

from components.config.model_spec.mtp import MTPSpec
from tests.components.distributed.data_cases import train
from tests.components.distributed.layout_cases import Layout
from tests.components.distributed.tensor_cases import GELU, LAYER_NORM, Parts

# Double precision has 16 digits; sums in another order cost the last two or three.
TOLERANCE = 1e-11

MTP = MTPSpec(depth=2, loss_weight=0.3)
UNTIED = Parts(num_layers=4, mtp=MTP)
TIED = UNTIED._replace(tied=True, bias=True, mlp=GELU, norm=LAYER_NORM)
FURTHER = {"mtp.4.projection.weight", "mtp.5.layer.mlp.down.weight", "embedding.weight"}
LAYOUTS = {
    "tensor": Layout(tensor=2),
    "slices": Layout(tensor=2, sequence_parallel=True),
    "ZeRO 1": Layout(shard=2, zero=1),
    "ZeRO 3": Layout(shard=2, zero=3),
    "stages": Layout(pipeline=2),
    "a V": Layout(pipeline=2, schedule="zbv", stages_per_rank=2),
    "stages, recomputed": Layout(pipeline=2, recompute="full", recompute_every=2),
}


@pytest.mark.quick("slices-untied", "ZeRO 3-untied", "stages-untied", "a V-untied")
@pytest.mark.parametrize("parts", [UNTIED, TIED], ids=["untied", "tied"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_two_ranks_train_as_one_process_does(two_ranks, layout, parts):
    trained = two_ranks(train, parts, layout)
    assert max(max(rank.gradient, rank.weight) for rank in trained) < TOLERANCE
    with_head = [rank.weights for rank in trained if "final_norm.weight" in rank.weights]
    assert len(with_head) == (1 if layout.pipeline > 1 else 2)
    assert all(names.keys() >= FURTHER for names in with_head)
