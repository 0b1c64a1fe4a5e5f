"""The exchange of data ranks travels under the passes, whatever else the machine does."""

import pytest

from components.config.model_spec.feed_forward import ExpertsSpec, FeedForwardSpec
from tests.components.distributed.layout_cases import Layout
from tests.components.distributed.overlap_cases import graphs_of_layers, hidden
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import Parts

LEAST = 0.7
LAYERS = 8
FEWER_THAN_A_LAYER = 1_000
DENSE = Parts(num_layers=LAYERS)
EXPERTS = ExpertsSpec(
    num_experts=4,
    top_k=2,
    ffn_dim=8,
    activation="silu",
    gated=True,
    renormalize=False,
    routing="learned",
    auxiliary_loss=0.0,
    auxiliary_scope="layer",
    z_loss=0.0,
    path="loop",
)


@pytest.mark.parametrize("zero", [0, 1, 2])
@pytest.mark.parametrize("mlp", [DENSE.mlp, EXPERTS], ids=["dense", "experts"])
def test_passes_hide_most_of_an_exchange_as_long_as_the_backward_pass(
    two_ranks: Ranks, mlp: FeedForwardSpec, zero: int
) -> None:
    layout = Layout(
        shard=2,
        zero=zero,
        bucket_elements=FEWER_THAN_A_LAYER,
        accumulate="float32",
        reduce="float32",
    )
    for found in two_ranks(hidden, DENSE._replace(mlp=mlp), layout):
        assert found >= LEAST


@pytest.mark.long
def test_a_compiled_layer_waits_for_its_weights_before_its_one_graph(two_ranks: Ranks) -> None:
    layout = Layout(shard=2, zero=1)
    assert two_ranks(graphs_of_layers, DENSE._replace(num_layers=2), layout) == [1, 1]
