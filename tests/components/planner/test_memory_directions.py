"""Every change of the layout moves memory the right way; experts have ranks of their own."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.config.model_spec.feed_forward import FeedForwardSpec
from components.planner.job import TrainingJob
from components.planner.memory import plan_memory
from components.planner.states import compute_states, count_parameters
from tests.components.planner.jobs import gpt, hopper, job, layout, ours

MIDDLE = gpt(dim=4_096, num_layers=32, num_heads=32)
MIXTURE = MIDDLE.model_copy(
    update={"mlp": FeedForwardSpec(ffn_dim=1_024, gated=True, num_experts=64, top_k=8)}
)
ORDER = ("fits", "tight", "does_not_fit")


def peak(one: TrainingJob) -> float:
    return plan_memory(one, hopper(), ours().memory).fullest_rank_bytes


@pytest.mark.long
@settings(max_examples=40)
@given(
    tensor=st.sampled_from([1, 2, 4, 8]),
    pipeline=st.sampled_from([1, 2, 4]),
    data=st.sampled_from([1, 2, 8]),
    zero=st.sampled_from([0, 1, 2]),
    casts=st.sampled_from([0, 2]),
)
def test_sharing_more_keeping_less_and_smaller_microbatches_never_need_more(
    tensor: int, pipeline: int, data: int, zero: int, casts: int
) -> None:
    where = layout(tensor=tensor, pipeline=pipeline, data=data, zero=zero)
    one = job(MIDDLE, where, cast_bytes=casts, microbatch_sequences=2)
    before = peak(one)
    assert peak(one.with_layout(microbatch_sequences=1)) < before
    assert peak(one.with_layout(recompute="full")) < before
    assert peak(one.with_layout(zero=zero + 1)) <= before
    assert peak(one.with_layout(schedule="gpipe")) >= before
    assert peak(replace(one, sequence_length=8_192)) > before


@settings(max_examples=20)
@given(factor=st.floats(0.1, 1.0), tensor=st.sampled_from([2, 8]))
def test_less_memory_never_makes_a_verdict_kinder(factor: float, tensor: int) -> None:
    one, machine = job(MIDDLE, layout(tensor=tensor)), hopper()
    assert machine.usable_bytes is not None
    less = machine.model_copy(update={"usable_bytes": int(machine.usable_bytes * factor)})
    before = plan_memory(one, machine, ours().memory).memory_verdict
    after = plan_memory(one, less, ours().memory).memory_verdict
    assert ORDER.index(after) >= ORDER.index(before)


def test_expert_ranks_share_dense_state_only_if_the_optimizer_is_aware() -> None:
    """Mula's EPSO: dense state over data x expert ranks, experts' over data ranks."""
    aware = job(MIXTURE, layout(data=4, expert=8, zero=1))
    plain = aware.with_layout(expert_aware=False)
    parameters = count_parameters(aware, 0)
    assert parameters.expert == 32 * 8 * 3 * 4_096 * 1_024
    state = 12 * parameters.expert / 4
    kept = [
        held_state.master + held_state.optimizer
        for held_state in (compute_states(aware, parameters), compute_states(plain, parameters))
    ]
    assert kept == [state + 12 * parameters.dense / 32, state + 12 * parameters.dense / 4]
