"""Experts distributed over ranks equal one process, and hold the expected state."""

from typing import Any

import pytest

from tests.components.distributed import experts_cases
from tests.components.distributed.data_cases import Trained, hold_experts, train
from tests.components.distributed.layout_cases import Layout
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import SWIGLU, Parts
from tests.components.distributed.test_microbatches import run_steps
from tests.components.model.specs import experts_spec

# Double precision has 16 digits; sums in another order cost the last one or two.
TOLERANCE = 1e-13
DISPATCHES: tuple[Any, ...] = ("all_gather", "all_to_all")
dispatches = pytest.mark.parametrize("dispatch", DISPATCHES)


def mixture(**changes: Any) -> Parts:
    settings = {"ffn_dim": 5, "auxiliary_loss": 0.3, "z_loss": 0.1} | changes
    return Parts(mlp=experts_spec(**settings), num_layers=3)


def assert_as_one_process(trained: list[Trained]) -> None:
    for rank in trained:
        assert rank.gradient < TOLERANCE
        assert rank.weight < TOLERANCE


@dispatches
@pytest.mark.parametrize("routing", ["spread", "one rank", "one expert"])
@pytest.mark.parametrize("path", ["loop", "sorted", "grouped"])
# Seven tokens: parts of different lengths, and fewer parts than configured.
@pytest.mark.parametrize("overlap", [1, 3, 8])
def test_distributed_experts_and_gradients_equal_one_process(
    two_ranks: Ranks, dispatch: str, routing: str, path: str, overlap: int
) -> None:
    for differences in two_ranks(experts_cases.mix, dispatch, routing, path, overlap):
        for name, difference in differences.items():
            assert difference < experts_cases.MIXTURE_TOLERANCE, name


@pytest.mark.parametrize(("routing", "bound"), [("even", 1), ("spread", 2), ("one rank", 2)])
@pytest.mark.parametrize("path", ["sorted", "grouped"])
@pytest.mark.parametrize("overlap", [1, 3])
def test_a_sufficient_bound_changes_nothing(two_ranks, routing, bound, path, overlap):
    tolerance = experts_cases.MIXTURE_TOLERANCE if path == "grouped" else TOLERANCE
    for gap, beyond in two_ranks(experts_cases.mix_bounded, routing, path, overlap, bound):
        assert gap < tolerance
        assert beyond == 0


@pytest.mark.parametrize(
    ("overlap", "bound", "beyond"),
    # All 14 pairs are for one rank, which gets 7 or 11; of parts of 6, 4, 4 pairs 5, 3, 3.
    [(1, 1, 7), (1, 1.5, 3), (3, 1.5, 3), (3, 2, 0)],
)
def test_pairs_beyond_a_bound_are_counted(two_ranks, overlap, bound, beyond):
    given = "one expert", "sorted", overlap, bound
    for gap, dropped in two_ranks(experts_cases.mix_bounded, *given):
        assert dropped == beyond
        assert (gap < TOLERANCE) == (beyond == 0)


@dispatches
def test_communication_of_a_part_overlaps_with_computation(two_ranks, dispatch):
    there, back = ["depart"] * 2, ["depart"]  # tokens with weights; the mixture
    for forward, backward in two_ranks(experts_cases.note_order, dispatch, 2):
        each = ["arrive", "arrive", "compute", *back]
        assert forward == [*there * 2, *each * 2, "arrive", "arrive"]
        each = ["arrive", "compute", *there]
        assert backward == [*back * 2, *each * 2, *["arrive"] * 4]


@dispatches
def test_bfloat16_tokens_are_mixed_accurately(two_ranks: Ranks, dispatch: str) -> None:
    for difference in two_ranks(experts_cases.mix_coarsely, dispatch):
        assert difference < 0.02  # of the largest: bfloat16 has 8 bits


PAIR = Layout(shard=2, expert=2)
EXCHANGED = PAIR._replace(dispatch="all_to_all", overlap=3)
LAYOUTS = {
    "expert 4": Layout(expert=4, zero=1),
    "aware": PAIR._replace(zero=1),
    "plain": PAIR._replace(zero=2, expert_aware=False),
    "replicas": Layout(replicate=2, expert=2, zero=1),
    "recomputed": PAIR._replace(recompute="full"),
    "recomputed in parts": EXCHANGED._replace(recompute="full"),
    "selective": EXCHANGED._replace(recompute="selective"),
    "bounded": Layout(expert=4, zero=1, dispatch="all_to_all", overlap=2, bound=4),
    "bounded and recomputed": EXCHANGED._replace(zero=2, overlap=1, recompute="full", bound=2),
    "bounded and selective": EXCHANGED._replace(recompute="selective", bound=2),
}
LAYOUTS |= {
    f"expert 2, zero {zero}, {dispatch} {overlap}": Layout(
        expert=2, zero=zero, dispatch=dispatch, overlap=overlap
    )
    for zero, overlap in ((0, 1), (1, 1), (2, 1), (2, 2))
    for dispatch in DISPATCHES
}
LAYOUTS |= {f"no expert ranks, zero {zero}": Layout(shard=2, zero=zero) for zero in (1, 2, 3)}


@pytest.mark.quick(
    *("aware", "expert 2, zero 1, all_gather 1", "expert 2, zero 2, all_to_all 2"),
    "no expert ranks, zero 2",
)
@pytest.mark.parametrize("name", LAYOUTS)
def test_data_and_expert_ranks_train_as_one_process_does(run_layout, name):
    layout = LAYOUTS[name]
    parts = mixture(auxiliary_scope="layer" if layout.ranks == 4 else "model")
    assert_as_one_process(run_layout(train, parts, layout))


# With a gated shared expert, after a dense layer.
DEEPSEEK = {"scores": "sigmoid", "renormalize": True, "weight_scale": 2.5, "num_groups": 2}
DEEPSEEK |= {"top_groups": 1, "shared_ffn_dim": 7, "shared_gate": True}
DEEPSEEK |= {"balance_rate": 0.05, "auxiliary_loss": 0.01}
GPT_OSS = {"bias": True, "renormalize": True, "swiglu_alpha": 1.702, "swiglu_limit": 0.2}
FAMILIES = {
    "deepseek": mixture(**DEEPSEEK)._replace(dense_mlp=SWIGLU),
    "gpt-oss": mixture(**GPT_OSS, linear_offset=1.0),
}
STAGES = Layout(pipeline=2, expert=2, recompute="selective", dispatch="all_to_all")
OF_FAMILIES = {
    "gathered": Layout(expert=4, zero=1),
    "experts": PAIR._replace(zero=1),
    "recomputed": EXCHANGED._replace(zero=2, recompute="full", overlap=2),
    "bounded": LAYOUTS["bounded and recomputed"],
    "bounded stages": STAGES._replace(bound=2),
    "stages": STAGES._replace(overlap=2),
    "whole layers": Layout(shard=4, zero=3),
}
BIASED = {
    "deepseek": ("experts", "recomputed", "bounded stages", "whole layers"),
    "gpt-oss": ("gathered", "bounded", "stages", "whole layers"),
}


@pytest.mark.quick("deepseek-experts", "gpt-oss-bounded")
@pytest.mark.parametrize(
    "case", [f"{family}-{layout}" for family, layouts in BIASED.items() for layout in layouts]
)
def test_biases_of_routers_and_experts_train_as_in_one_process(four_ranks, case):
    family, _, layout = case.rpartition("-")
    # After two steps a bias of a router that rose and fell is 0.
    trained = four_ranks(train, FAMILIES[family], OF_FAMILIES[layout], 3)
    assert_as_one_process(trained)
    biases = [bias for rank in trained for name, bias in rank.weights.items() if "bias" in name]
    assert biases
    assert all(bias.count_nonzero() for bias in biases)


@pytest.mark.quick("1f1b-layer-1", "zbv-model-2")
@pytest.mark.parametrize("expert", [1, 2])
@pytest.mark.parametrize("scope", ["model", "layer"])
@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble", "zbv", "dualpipev"])
def test_auxiliary_losses_over_stages_equal_one_process(run_layout, scope, schedule, expert):
    stages = 1 if schedule == "1f1b" else 2
    layout = Layout(pipeline=2, expert=expert, schedule=schedule, stages_per_rank=stages)
    parts = mixture(auxiliary_scope=scope)._replace(num_layers=5)
    steps = ([4, 6], True) if expert == 1 else ([4], False)
    for rank in run_layout(run_steps, parts, layout, *steps):
        assert rank.loss < TOLERANCE
        assert rank.gradient < TOLERANCE


def test_the_published_divisor_leaves_expert_gradients_larger_by_the_expert_degree(four_ranks):
    layout = PAIR._replace(zero=1)
    for ratios in four_ranks(experts_cases.compare_divisors, mixture(), layout):
        for name, ratio in ratios.items():
            of_experts = ".mlp." in name and "router" not in name
            assert ratio == pytest.approx(2 if of_experts else 1), name


@pytest.mark.parametrize(("aware", "dense_pieces"), [(True, 4), (False, 2)])
def test_expert_ranks_may_shard_the_state_of_dense_weights(four_ranks, aware, dense_pieces):
    layout = Layout(shard=2, expert=2, zero=1, expert_aware=aware)
    for held in four_ranks(hold_experts, mixture(), layout):
        # Two moments per number; all rows divide evenly.
        assert held.dense_state == 2 * held.dense / dense_pieces
        assert held.experts_state == 2 * held.experts / 4
