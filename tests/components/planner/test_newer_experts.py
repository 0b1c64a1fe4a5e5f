"""Shared experts, and dense layers before those with experts, in the plan's counts."""

from dataclasses import replace

import pytest

from components.config.model_spec.feed_forward import FeedForwardSpec
from components.config.model_spec.mtp import MTPSpec
from components.planner import activations, memory, states
from components.planner.job import TrainingJob
from components.planner.passes import head_seconds, layer_parts, layers_parts
from components.planner.products import layer_products
from components.planner.time import evaluation_seconds
from tests.components.planner.jobs import gpt, hopper, job, layout, ours

SHARED = FeedForwardSpec(ffn_dim=512, gated=True, num_experts=8, top_k=2, shared_ffn_dim=1_024)
DENSE = FeedForwardSpec(ffn_dim=4_096, gated=True)


def mixture(**changes: int) -> TrainingJob:
    """Twelve layers in two stages over two expert ranks, the first two of them dense."""
    shape = gpt(num_layers=12, dim=1_024, num_heads=8)
    parts = {"mlp": SHARED, "dense_mlp": DENSE, "num_dense_layers": 2, "tied_embeddings": False}
    shape = shape.model_copy(update=parts)
    cut = layout(pipeline=2, layers_by_stage=(6, 6), expert=2, data_shard=2, **changes)
    return job(shape, cut)


def test_the_stages_hold_every_parameter_of_the_model() -> None:
    model = mixture()
    ranks = [states.rank_parameters(model, rank) for rank in (0, 1)]
    held = sum(rank.dense + 2 * rank.expert for rank in ranks)
    shape = model.shape
    norms = shape.norm.count_parameters(shape.dim)
    assert held + norms == shape.total_parameters + shape.padding_parameters
    assert ranks[0].expert == 4 * 8 * SHARED.expert_parameters(1_024) / 2
    assert ranks[1].expert == 6 * 8 * SHARED.expert_parameters(1_024) / 2


@pytest.mark.parametrize("tied", [False, True])
def test_the_last_stage_has_what_predicts_further_tokens_and_the_embedding(tied: bool) -> None:
    changes = {"mtp": MTPSpec(depth=2, loss_weight=0.1), "tied_embeddings": tied}
    plain = mixture()
    shape = plain.shape.model_copy(update={"tied_embeddings": tied})
    further = replace(
        plain,
        shape=shape.model_copy(update=changes),
        layout=plain.layout.model_copy(update={"recompute_every": 5}),
        mtp_depth=2,
    )
    held = [states.rank_parameters(further, rank) for rank in (0, 1)]
    count = sum(rank.dense + 2 * rank.expert for rank in held)
    norms, again = shape.norm.count_parameters(shape.dim), states.end_matrix(plain)
    total = shape.total_parameters + shape.padding_parameters + further.shape.mtp_parameters
    assert count + norms == total + again
    assert held[1].expert == (6 + 2) * 8 * SHARED.expert_parameters(1_024) / 2
    assert held[1].ends == (1 if tied else 2) * again
    assert further.layer_kinds((1,))[0][1:] == (
        8,
        1,
    )  # of layers 6 to 13 number 10 is recomputed
    alone = replace(further, mtp_depth=0)
    one, more = (head_seconds(x, hopper(), ours().speed) for x in (alone, further))
    assert more[1] == pytest.approx(3 * one[1])
    assert more[0] > 3 * one[0]
    evaluated = [
        evaluation_seconds(x, hopper(), ours().speed, sources=1, windows_per_source=4)
        for x in (alone, further)
    ]
    assert evaluated[0] == evaluated[1]


def test_the_first_stage_has_the_dense_layers_and_the_second_has_none() -> None:
    model = mixture()
    assert [kind[1:] for kind in model.layer_kinds((0,))] == [(4, 4), (2, 2)]
    assert [kind[1:] for kind in model.layer_kinds((1,))] == [(6, 6), (0, 0)]
    third = model.with_layout(recompute_every=3)
    assert [kind[1:] for kind in third.layer_kinds((0,))] == [(4, 1), (2, 1)]  # layers 3 and 0


def test_a_shared_expert_is_two_products_more_of_all_tokens() -> None:
    model = mixture()
    alone = model.shape.mlp.model_copy(update={"shared_ffn_dim": None})
    without = replace(model, shape=model.shape.model_copy(update={"mlp": alone}))
    flops = [sum(one.num_flops for one in layer_products(each)) for each in (model, without)]
    assert flops[0] - flops[1] == 2 * model.microbatch_tokens * 3 * 1_024 * 1_024
    kept = [activations.layer_bytes_per_token(each) for each in (model, without)]
    assert kept[0] - kept[1] == 2 * 4 * 1_024  # into the activation, its gate, and out of both


def test_the_gate_of_a_shared_expert_is_one_more_column_and_keeps_its_input() -> None:
    model = mixture()
    mlp = model.shape.mlp.model_copy(update={"shared_gate": True})
    gated = replace(model, shape=model.shape.model_copy(update={"mlp": mlp}))
    flops = [sum(one.num_flops for one in layer_products(each)) for each in (gated, model)]
    assert flops[0] - flops[1] == 2 * model.microbatch_tokens * 1_024
    for recompute in ("none", "selective"):
        jobs = [each.with_layout(recompute=recompute) for each in (gated, model)]
        kept = [activations.layer_bytes_per_token(each) for each in jobs]
        assert kept[0] - kept[1] == 2 * (1_024 + 1)  # the expert's output, and the gate


def test_a_stage_takes_the_seconds_of_its_layers_of_both_kinds() -> None:
    model, speed = mixture(), ours().speed
    whole = layers_parts(model, 0, hopper(), speed)
    experts, dense = (layer_parts(one, hopper(), speed) for one in (model, model.dense_job))
    assert whole == pytest.approx({
        name: 4 * experts[name] + 2 * dense[name] for name in experts
    })
    assert dense["expert collectives"] == 0
    assert experts["expert collectives"] > 0


def test_activations_are_those_of_both_kinds() -> None:
    model, software = mixture(), ours().memory
    bare = software.model_copy(update={"fragmentation": 1.0, "stage_outputs": 0.0})
    stored, recomputed = memory._activations(model, 0, bare)
    assert recomputed == 0
    first = stored / activations.count_stored_microbatches(model, 0)
    each = [activations.layer_bytes_per_token(one) for one in (model, model.dense_job)]
    assert first == pytest.approx((4 * each[0] + 2 * each[1]) * model.microbatch_tokens)
