"""At every stage of ZeRO ranks train like one process and hold the expected memory."""

from collections.abc import Iterator

import pytest
import torch

from tests.components.distributed import data_cases
from tests.components.distributed.layout_cases import Layout
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import GELU, HYBRID, SWIGLU, XIELU, Parts

# Double precision has 16 digits; sums in another order cost the last one or two.
TOLERANCE = 1e-13
# Step counters, rotary tables and pointers of FSDP do not belong to the model.
SMALL = 0.02

EVEN = Parts(bias=True)


@pytest.fixture(scope="module")
def new_ranks() -> Iterator[Ranks]:
    """Start two processes in which no case of another file has left memory."""
    with Ranks(2) as ranks:
        yield ranks


# 61 rows do not divide evenly; of one or three rows some ranks have none.
ONE_ROW = Parts(mlp=SWIGLU.model_copy(update={"ffn_dim": 1}), rows=61)
THREE_ROWS = Parts(
    mlp=GELU.model_copy(update={"ffn_dim": 3}), rows=61, num_kv_heads=1, bias=True, tied=True
)
stages = pytest.mark.parametrize("zero", [0, 1, 2, 3])


PARTS = {"even": EVEN, "one row": ONE_ROW, "two scalars": Parts(mlp=XIELU), "hybrid": HYBRID}
CASES = {
    f"{name}, zero {zero}": (parts, Layout(shard=2, zero=zero))
    for name, parts in PARTS.items()
    for zero in range(4)
}
CASES |= {f"four, zero {zero}": (THREE_ROWS, Layout(shard=4, zero=zero)) for zero in range(4)}
CASES |= {
    f"replicas, zero {zero}": (ONE_ROW, Layout(replicate=2, shard=2, zero=zero))
    for zero in range(4)
}
CASES |= {
    f"many buckets, zero {zero}": (
        ONE_ROW,
        Layout(shard=2, zero=zero, bucket_elements=data_cases.FEW_ELEMENTS),
    )
    for zero in (0, 1)
}


@pytest.mark.quick(
    *("even, zero 1", "one row, zero 3", "hybrid, zero 1", "hybrid, zero 3"),
    *("two scalars, zero 1", "two scalars, zero 2", "two scalars, zero 3"),
    *("many buckets, zero 0", "many buckets, zero 1", "four, zero 3", "replicas, zero 3"),
)
@pytest.mark.parametrize("case", CASES)
def test_data_ranks_train_as_one_process_does(run_layout, case):
    # States of a linear mixer amplify rounding by two more digits.
    tolerance = 1e-11 if case.startswith("hybrid") else TOLERANCE
    trained = run_layout(data_cases.train, *CASES[case])
    for rank in trained:
        assert rank.gradient < tolerance
        assert rank.weight < TOLERANCE
        assert rank.weights.keys() == trained[0].weights.keys()
        for name, weight in rank.weights.items():
            assert torch.equal(weight, trained[0].weights[name]), name


@pytest.mark.parametrize("zero", [0, 1])
def test_a_gradient_after_its_bucket_was_reduced_is_refused(two_ranks, zero):
    layout = Layout(shard=2, zero=zero)
    for message in two_ranks(data_cases.give_a_late_gradient, EVEN, layout):
        assert message == "a gradient came after its bucket had left"


# Weights, gradients and state: while microbatches accumulate, and before the update.
HELD = {
    0: ((1, 1, 2), (1, 1, 2)),
    1: ((1, 1, 1), (1, 1 / 2, 1)),
    2: ((1, 1 / 2, 1), (1, 1 / 2, 1)),
    3: ((1 / 2, 1 / 2, 1), (1 / 2, 1 / 2, 1)),
}


@pytest.mark.quick("2", "3")
@stages
def test_a_rank_holds_the_bytes_of_the_table(new_ranks: Ranks, zero: int) -> None:
    for measured in new_ranks(data_cases.hold, EVEN, Layout(shard=2, zero=zero)):
        for held, expected in zip(measured, HELD[zero], strict=True):
            assert isinstance(held, data_cases.Held)
            assert held[:3] == expected
            assert held.anything_else < SMALL


def test_a_rank_holds_its_rows_and_one_gathered_layer(four_ranks: Ranks) -> None:
    """Torch also gathers the next layer ahead, in a buffer that no parameter shows."""
    layers = 12
    parts = EVEN._replace(num_layers=layers)
    for most in four_ranks(data_cases.most_of_layers, parts, Layout(shard=4, zero=3)):
        assert most == pytest.approx(1 / 4 + 1 / layers, rel=0.01)


def test_gathered_weights_are_freed_after_a_forward_pass(new_ranks: Ranks) -> None:
    for held in new_ranks(data_cases.hold_after_evaluation, EVEN, Layout(shard=2, zero=3)):
        assert held[:3] == (1 / 2, 0, 0)
        assert held.anything_else < SMALL


@pytest.mark.quick("2", "3")
@stages
def test_running_sums_are_rounded_after_each_microbatch(two_ranks: Ranks, zero: int) -> None:
    layout = Layout(shard=2, zero=zero, accumulate="bfloat16", reduce="float32")
    assert two_ranks(data_cases.accumulate_in_bfloat16, EVEN, layout, 3) == [[], []]


@stages
def test_sums_over_ranks_have_the_configured_dtype(two_ranks: Ranks, zero: int) -> None:
    layout = Layout(shard=2, zero=zero, accumulate="float32", reduce="bfloat16")
    assert two_ranks(data_cases.reduce_in_bfloat16, EVEN, layout) == [[], []]


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_an_unused_weight_has_a_gradient_of_zeros(two_ranks: Ranks, zero: int) -> None:
    for rank, (used, unused) in enumerate(two_ranks(data_cases.leave_unused, zero)):
        own = 3 if zero == 0 else (2, 1)[rank]
        assert used.tolist() == [0.5] * own  # the mean of 0 and 1
        assert unused.sum().item() == 0
        assert len(unused) == (5 if zero == 0 else (3, 2)[rank])
