"""Activations that layers keep equal the plan, rehearsed at two depths."""

from functools import cache
from typing import Any

import pytest

from components.dryrun.rehearsal import StepTrace, run_two_steps
from components.planner.activations import layer_bytes_per_token
from components.planner.job import TrainingJob, job_from_recipe
from tests.recipes.compositions import compose

pytestmark = pytest.mark.long

WORDS = (
    *("scale=mini", "cluster.device=cuda", "cluster.ranks=auto", "precision.compute=bfloat16"),
    *("budget.sequence_length=256", "budget.global_batch_tokens=8192", "model.dim=256"),
    *("budget.total_tokens=81920", "parallelism.data=1", "parallelism.microbatch_sequences=2"),
)
QK_NORM = (
    "model.attention.qk_norm={_target_: components.model.norms.Norm, _partial_: true, "
    "eps: 1e-5, center: false, weight: true, bias: false}"
)
HEAD_NORMS = "model.attention.qk_norm_over=each_head"
LATENT = (
    "model.attention._target_=components.model.latent_attention.LatentAttention",
    *("model.attention.num_heads=8", "model.attention.num_kv_heads=8"),
    *("model.attention.head_dim=48", "model.attention.rotary_dim=16"),
    *("model.attention.value_dim=32", "model.attention.query_rank=96"),
    *("model.attention.key_value_rank=64", QK_NORM.replace("qk_norm", "latent_norm")),
)
GEMMA3 = (
    *("model.norm_placement=both", "model.embedding_scale=sqrt_dim"),
    *("model.mlp.activation=gelu_tanh", "model.attention.scale_dim=48", HEAD_NORMS, QK_NORM),
)
GATE, SINKS = "model.attention.output_gate=true", "model.attention.sinks=true"
ROTARY = "model.positions.rotary_fraction=0.25"
CLAMPED = ("model.mlp.swiglu_limit=7", "model.mlp.linear_offset=1")
SHARED = ("model.mlp.shared_ffn_dim=512", "model.mlp.shared_gate=true")
DENSE = (
    "model.dense_mlp={_target_: components.model.mlp.MLP, _partial_: true, ffn_dim: 768, "
    "activation: silu, gated: true, bias: false}",
)
TENSOR, CONTEXT = "parallelism.tensor=2", "parallelism.context=2"
EXPERT, EXCHANGE = "parallelism.expert=2", "parallelism.expert_dispatch=all_to_all"
DEPTHS = (2, 4)


@cache
def rehearsed(layers: int, name: str, *words: str) -> tuple[TrainingJob, StepTrace]:
    recipe = compose(name, *WORDS, *words, f"model.num_layers={layers}")
    return job_from_recipe(recipe), run_two_steps(recipe, 0)


def most(found: StepTrace) -> dict[Any, int]:
    """Return the bytes by category at the peak of activations."""
    peaks = (found.peaks[phase] for phase in ("forward", "backward"))
    categories = [peak.by_category for peak in peaks]
    return max(categories, key=lambda one: one["activations"])


def apart_and_planned(name: str, *words: str) -> tuple[dict[Any, float], float]:
    """Return the rehearsed bytes of one layer by category, and the planned bytes."""
    (job, fewer), (_, more) = (rehearsed(depth, name, *words) for depth in DEPTHS)
    layers, before = DEPTHS[1] - DEPTHS[0], most(fewer)
    apart = {key: (held - before[key]) / layers for key, held in most(more).items()}
    return apart, layer_bytes_per_token(job) * job.microbatch_tokens


SELECTIVE = {
    "dense": (),
    "tensor": (TENSOR, "parallelism.sequence_parallel=true"),
    "context": (CONTEXT,),
    "norms after": ("model.norm_placement=after",),
    "gemma 3": (*GEMMA3, TENSOR, "parallelism.sequence_parallel=true"),
    "output gate": (GATE, TENSOR),
    "sinks": (SINKS, TENSOR),
    "latent": LATENT,
    "latent over tensor ranks": (*LATENT, TENSOR),
    "latent over context ranks": (*LATENT, CONTEXT),
}
EXPERTS = {
    "experts": (),
    "gathered": (EXPERT,),
    "exchanged": (EXPERT, EXCHANGE),
    "bounded": (EXPERT, EXCHANGE, "parallelism.expert_capacity_factor=1.5"),
    "gated": SHARED,
}


@pytest.mark.parametrize("case", [*SELECTIVE, *EXPERTS])
def test_activations_of_selective_recomputation_equal_the_plan(case: str) -> None:
    name, tolerance = ("teuken7b", 1e-4) if case in SELECTIVE else ("mula7b_a1b", 0.05)
    words = (SELECTIVE | EXPERTS)[case]
    apart, planned = apart_and_planned(name, *words, "parallelism.recompute=selective")
    assert apart["activations"] == pytest.approx(planned, rel=tolerance)
    assert apart["casts"] == 0


PLAIN = ("model.mlp.gated=false", QK_NORM)


@pytest.mark.parametrize(
    "words",
    [
        LATENT,
        (*LATENT, TENSOR),
        (*LATENT, "data.document_mask=true"),  # with flex attention
        (GATE, TENSOR, QK_NORM),
        (SINKS, QK_NORM),
        (ROTARY, TENSOR, QK_NORM),
        (QK_NORM, "model.attention.qk_norm_over=all_heads"),
        (QK_NORM, "model.attention.qk_norm_over=all_heads", TENSOR),
        (QK_NORM, HEAD_NORMS, TENSOR),
        GEMMA3,  # scaled queries replace the rotated ones
        (QK_NORM, *CLAMPED),
        (*PLAIN, "model.mlp.activation=xielu"),
        (*PLAIN, "model.mlp.activation=relu_squared"),
    ],
)
def test_activations_of_a_layer_equal_the_plan(words: tuple[str, ...]) -> None:
    apart, planned = apart_and_planned("teuken7b", *words, "parallelism.recompute=none")
    assert apart["activations"] == pytest.approx(planned, rel=0.02)


@pytest.mark.parametrize(
    ("words", "recompute"),
    [
        (SHARED[:1], "none"),
        (SHARED, "none"),
        ((*CLAMPED, "model.mlp.bias=true"), "none"),
        ((*CLAMPED, "model.mlp.bias=true"), "selective"),
    ],
    ids=["shared", "gated", "biases", "biases, selective"],
)
def test_changes_of_expert_activations_equal_the_plan(words, recompute):
    kept = []
    for more in ((), words):
        job, found = rehearsed(4, "mula7b_a1b", f"parallelism.recompute={recompute}", *more)
        planned = 4 * layer_bytes_per_token(job) * job.microbatch_tokens
        kept.append((planned, most(found)["activations"]))
    (planned, measured), (planned_more, measured_more) = kept
    assert measured_more - measured == pytest.approx(planned_more - planned, rel=0.02)


def test_activations_of_a_leading_dense_layer_equal_the_plan() -> None:
    (_, plain), (job, found) = (
        rehearsed(4, "mula7b_a1b", "parallelism.recompute=none", *more) for more in ((), DENSE)
    )
    (other, experts, _), (alike, layers, _) = job.layer_kinds((0,))
    assert (experts, layers) == (3, 1)
    with_experts, dense_alone = map(layer_bytes_per_token, (other, alike))
    apart = (most(plain)["activations"] - most(found)["activations"]) / job.microbatch_tokens
    # The layers are nearly equal, so the tolerance is a twentieth of one layer.
    assert apart == pytest.approx(with_experts - dense_alone, abs=0.05 * dense_alone)
