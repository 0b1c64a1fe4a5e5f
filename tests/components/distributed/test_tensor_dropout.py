"""Tensor ranks drop alike what all of them hold, and each in its own way its own part."""

from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_dropout_cases import (
    dropped_weights,
    embedding_zeros,
    hidden_states,
    next_number_after_dropping,
    seeds,
)


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
