"""Tensor parallelism costs what it should, and bears stages, shards and checkpointing."""

from typing import Literal

import pytest
import torch

from components.config.model_spec.positions import AlibiSpec, LearnedSpec
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import (
    GELU,
    GEMMA3,
    LAYER_NORM,
    LENGTH,
    RMS_NORM,
    Difference,
    Parts,
)
from tests.components.distributed.tensor_layout_cases import (
    autocast_difference,
    checkpointing_difference,
    count_collectives,
    run_in_stages,
    shard_too,
    start_on_meta,
    summed_in,
)

LOSS_TOLERANCE = 1e-12
GRADIENT_TOLERANCE = 1e-10
AUTOCAST_TOLERANCE = 0.04  # bfloat16 rounds to 0.004, and a gradient has gone through a dozen

LLAMA = Parts()
GPT = Parts(
    num_kv_heads=8,
    bias=True,
    tied=True,
    positions=LearnedSpec(num_positions=LENGTH),
    mlp=GELU,
    norm=LAYER_NORM,
)
BLOOM = GPT._replace(positions=AlibiSpec(), embedding_norm=LAYER_NORM)
SHARED_GROUP = Parts(num_kv_heads=1, qk_norm=RMS_NORM)
sequence_parallel = pytest.mark.parametrize(
    "sequence_parallel", [False, True], ids=["whole", "sliced"]
)


def assert_small(differences: list[Difference]) -> None:
    for difference in differences:
        assert difference.loss < LOSS_TOLERANCE
        assert difference.gradient < GRADIENT_TOLERANCE, difference.parameter


@pytest.mark.parametrize("parts", [LLAMA, BLOOM], ids=["llama", "bloom"])
def test_a_layer_costs_two_all_reduces_each_way(two_ranks: Ranks, parts: Parts) -> None:
    for forward, backward in two_ranks(count_collectives, parts, False):
        assert forward == {"allreduce": 2}
        assert backward == {"allreduce": 2}


@pytest.mark.parametrize(("parts", "vectors"), [(LLAMA, 2), (BLOOM, 4 + 2)])
def test_a_sliced_layer_gathers_its_inputs_again_and_sums_what_all_hold(
    two_ranks: Ranks, parts: Parts, vectors: int
) -> None:
    """Vectors are the norms' and the biases after a sum: each rank has its slice's share."""
    scatters = {"reduce_scatter_base": 2}
    for forward, backward in two_ranks(count_collectives, parts, True):
        assert forward == {"allgather_base": 2} | scatters
        again = 2
        assert backward == {"allgather_base": 2 + again, "allreduce": vectors} | scatters


def test_what_all_ranks_hold_has_gradients_summed_in_the_dtype_of_the_reduction(
    four_ranks: Ranks,
) -> None:
    """In bfloat16 256 + 1 is 256; the float32 sum, 259, lies between 258 and 260."""
    assert four_ranks(summed_in, torch.float32) == [{260.0}] * 4
    assert all(found - {260.0} for found in four_ranks(summed_in, torch.bfloat16))


@pytest.mark.quick("sliced-llama")
@pytest.mark.parametrize(
    "parts", [LLAMA, GPT, BLOOM, GEMMA3], ids=["llama", "gpt", "bloom", "gemma 3"]
)
@sequence_parallel
def test_stages_hand_on_hidden_states_as_plain_tensors(
    two_ranks: Ranks, parts: Parts, sequence_parallel: bool
) -> None:
    three_layers = parts._replace(num_layers=3)
    assert_small(two_ranks(run_in_stages, three_layers, sequence_parallel))


@pytest.mark.quick("sliced-bloom")
@pytest.mark.parametrize(
    "parts", [LLAMA, BLOOM, SHARED_GROUP], ids=["llama", "bloom", "shared group"]
)
@sequence_parallel
def test_shards_over_a_data_axis_change_nothing(
    four_ranks: Ranks, parts: Parts, sequence_parallel: bool
) -> None:
    assert_small(four_ranks(shard_too, parts, sequence_parallel))


@pytest.mark.long
@pytest.mark.parametrize("recompute", ["selective", "full", ["attention", "norms"], ["mlp"]])
@sequence_parallel
def test_checkpointing_changes_no_bit_of_a_gradient_dropout_included(
    two_ranks: Ranks,
    sequence_parallel: bool,
    recompute: Literal["selective", "full"] | list[str],
) -> None:
    drops = BLOOM._replace(dropout=0.1, attention_dropout=0.2)
    assert two_ranks(checkpointing_difference, drops, sequence_parallel, recompute) == [0, 0]


def test_parameters_on_meta_become_real_under_their_names(two_ranks: Ranks) -> None:
    two_ranks(start_on_meta, GPT)


@pytest.mark.parametrize("parts", [LLAMA, BLOOM], ids=["llama", "bloom"])
@sequence_parallel
def test_autocast_reaches_the_split_parts(
    two_ranks: Ranks, parts: Parts, sequence_parallel: bool
) -> None:
    differences = two_ranks(autocast_difference, parts, sequence_parallel)
    assert max(differences) < AUTOCAST_TOLERANCE
