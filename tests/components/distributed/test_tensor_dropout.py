"""Tensor ranks drop alike what all of them hold, and each in its own way its own part."""

import torch

from components.attention_backends import BACKENDS
from components.distributed.tensor_styles import TensorParallelAttention, stream_seed
from components.model.attention import AttentionContext, AttentionCore
from components.model.positions import PositionEncoding
from tests.components.distributed import tensor_cases
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import tensor_mesh

LENGTH = 32


def dropped_weights(seed: int, layer: int, training: bool) -> list[bool]:
    """List which of 32 x 32 equal weights are dropped: the values are the unit matrix."""
    inner = AttentionCore(dropout=0.5, backends=BACKENDS)
    core = TensorParallelAttention(inner, tensor_mesh(), layer=layer).train(training)
    scope = AttentionContext(
        encoding=PositionEncoding(position_ids=torch.arange(LENGTH)), documents=None
    )
    zeros, unit = torch.zeros(1, 1, LENGTH, 4), torch.eye(LENGTH)[None, None]
    torch.manual_seed(seed)
    mixed = core(zeros, zeros, unit, scope, first_head=0)
    kept: list[bool] = (mixed == 0).tril().flatten().tolist()
    return kept


def next_number_after_dropping() -> tuple[float, float]:
    """Draw a number after a pass that drops, and one after none."""
    dropped_weights(5, 0, True)
    after = torch.rand(()).item()
    torch.manual_seed(5)
    return after, torch.rand(()).item()


def hidden_states(sequence_parallel: bool) -> list[float]:
    """Run the layers in training, without the last norm and head, and list what comes out."""
    whole = tensor_cases.randomized(
        tensor_cases.Parts(dropout=0.5, attention_dropout=0.5)
    ).train()
    whole.final_norm = whole.head = None
    split = tensor_cases.split_copy(whole, sequence_parallel=sequence_parallel)
    torch.manual_seed(stream_seed(3, tensor_mesh(), sequence_parallel=sequence_parallel))
    hidden: list[float] = split(tensor_cases.batch()[0]).flatten().tolist()
    return hidden


def embedding_zeros() -> list[bool]:
    """List what dropout takes from slices of the embedding, before any layer."""
    whole = tensor_cases.randomized(tensor_cases.Parts(dropout=0.5, num_layers=1)).train()
    whole.final_norm = whole.head = None
    del whole.layers["0"]
    split = tensor_cases.split_copy(whole, sequence_parallel=True)
    torch.manual_seed(stream_seed(3, tensor_mesh(), sequence_parallel=True))
    zeros: list[bool] = (split(tensor_cases.batch()[0]) == 0).flatten().tolist()
    return zeros


def seeds() -> tuple[int, int]:
    """Return what 3 becomes with whole and with sliced hidden states."""
    mesh = tensor_mesh()
    whole = stream_seed(3, mesh, sequence_parallel=False)
    return whole, stream_seed(3, mesh, sequence_parallel=True)


def test_each_rank_drops_attention_weights_of_its_own(two_ranks: Ranks) -> None:
    first, second = two_ranks(dropped_weights, 5, 0, True)
    assert first != second


def test_the_same_seed_and_layer_drop_the_same_weights_again(two_ranks: Ranks) -> None:
    dropped = two_ranks(dropped_weights, 5, 0, True)
    assert two_ranks(dropped_weights, 5, 0, True) == dropped
    for other in (
        two_ranks(dropped_weights, 6, 0, True),
        two_ranks(dropped_weights, 5, 1, True),
    ):
        assert all(one != two for one, two in zip(dropped, other, strict=True))


def test_half_of_the_weights_are_dropped_in_training_and_none_in_evaluation(
    two_ranks: Ranks,
) -> None:
    causal = 32 * 33 / 2
    for dropped in two_ranks(dropped_weights, 5, 0, True):
        assert 0.4 < sum(dropped) / causal < 0.6
    assert not any(map(any, two_ranks(dropped_weights, 5, 0, False)))


def test_the_shared_stream_goes_on_as_if_no_weight_had_been_dropped(two_ranks: Ranks) -> None:
    for after, without in two_ranks(next_number_after_dropping):
        assert after == without


def test_whole_hidden_states_stay_the_same_on_all_ranks(two_ranks: Ranks) -> None:
    first, second = two_ranks(hidden_states, False)
    assert first == second


def test_slices_of_the_residual_stream_are_dropped_each_in_its_own_way(
    two_ranks: Ranks,
) -> None:
    first, second = two_ranks(embedding_zeros)
    assert 0.3 < sum(first) / len(first) < 0.7
    assert first != second


def test_a_rank_changes_the_seed_only_where_hidden_states_are_sliced(two_ranks: Ranks) -> None:
    (whole, one), (same, other) = two_ranks(seeds)
    assert whole == same == 3
    assert len({3, one, other}) == 3
