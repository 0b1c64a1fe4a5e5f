"""What a layer recomputed by operator keeps, rehearsed at two depths, is what is planned."""

from typing import Any

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.dryrun.rehearsal import StepTrace, run_two_steps
from components.planner.activations import layer_bytes_per_token
from components.planner.job import TrainingJob, job_from_recipe

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
    "recipe=teuken7b",
    "model.attention._target_=components.model.latent_attention.LatentAttention",
    *("model.attention.num_heads=8", "model.attention.num_kv_heads=8"),
    *("model.attention.head_dim=48", "model.attention.rotary_dim=16"),
    *("model.attention.value_dim=32", "model.attention.query_rank=96"),
    *("model.attention.key_value_rank=64", QK_NORM.replace("qk_norm", "latent_norm")),
)
GEMMA3 = (
    *("recipe=teuken7b", "model.norm_placement=both", "model.embedding_scale=sqrt_dim"),
    *("model.mlp.activation=gelu_tanh", "model.attention.scale_dim=48", HEAD_NORMS, QK_NORM),
)
GATE = "model.attention.output_gate=true"
CLAMPED = ("model.mlp.swiglu_limit=7", "model.mlp.linear_offset=1")
SHARED_GATE = ("model.mlp.shared_ffn_dim=512", "model.mlp.shared_gate=true")
SINKS = "model.attention.sinks=true"
DEPTHS = (4, 8)


def rehearsed(layers: int, words: tuple[str, ...]) -> tuple[TrainingJob, StepTrace]:
    recipe = compose_recipe(read_point([*WORDS, *words, f"model.num_layers={layers}"]))
    return job_from_recipe(recipe), run_two_steps(recipe, 0)


def most(found: StepTrace) -> dict[Any, int]:
    """Return what is held by category when most activations are."""
    peaks = (found.peaks[phase] for phase in ("forward", "backward"))
    categories = [peak.by_category for peak in peaks]
    return max(categories, key=lambda one: one["activations"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "tolerance"),
    [
        (("recipe=teuken7b",), 1e-4),
        (
            ("recipe=teuken7b", "parallelism.tensor=2", "parallelism.sequence_parallel=true"),
            1e-4,
        ),
        (("recipe=teuken7b", "parallelism.context=2"), 1e-4),
        (("recipe=teuken7b", "model.norm_placement=after"), 1e-4),
        ((*GEMMA3, "parallelism.tensor=2", "parallelism.sequence_parallel=true"), 1e-4),
        (("recipe=teuken7b", "parallelism.tensor=2", HEAD_NORMS, QK_NORM), 1e-4),
        (("recipe=teuken7b", GATE, "parallelism.tensor=2"), 1e-4),
        (("recipe=teuken7b", SINKS, "parallelism.tensor=2"), 1e-4),
        (LATENT, 1e-4),
        ((*LATENT, "parallelism.tensor=2"), 1e-4),
        ((*LATENT, "parallelism.context=2"), 1e-4),
        (("recipe=mula7b_a1b",), 0.05),
        (("recipe=mula7b_a1b", "parallelism.expert=2"), 0.05),
        (
            (
                *("recipe=mula7b_a1b", "parallelism.expert=2"),
                "parallelism.expert_dispatch=all_to_all",
            ),
            0.05,
        ),
        (
            (
                *("recipe=mula7b_a1b", "parallelism.expert=2"),
                *(
                    "parallelism.expert_dispatch=all_to_all",
                    "parallelism.expert_capacity_factor=1.5",
                ),
            ),
            0.05,
        ),
        (("recipe=mula7b_a1b", "model.mlp.shared_ffn_dim=512"), 0.05),
        (("recipe=mula7b_a1b", *SHARED_GATE), 0.05),
    ],
    ids=[
        *("dense", "tensor", "context", "norms after"),
        *("gemma 3", "norm of each head", "output gate", "sinks"),
        *("latent", "latent over tensor ranks", "latent over context ranks"),
        *("experts", "gathered", "exchanged", "bounded", "shared", "gated"),
    ],
)
def test_a_layer_that_is_recomputed_by_operator_keeps_what_is_planned(
    words: tuple[str, ...], tolerance: float
) -> None:
    words = (*words, "parallelism.recompute=selective")
    (job, fewer), (_, more) = (rehearsed(depth, words) for depth in DEPTHS)
    apart = {name: more - most(fewer)[name] for name, more in most(more).items()}
    planned = layer_bytes_per_token(job)
    each = apart["activations"] / (DEPTHS[1] - DEPTHS[0])
    assert each == pytest.approx(planned * job.microbatch_tokens, rel=tolerance)
    assert apart["casts"] == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("more", "tolerance"),
    [
        ((), 0.02),
        (("parallelism.tensor=2",), 0.02),
        (("data.document_mask=true",), 0.02),
    ],
    ids=["flash", "tensor", "flex"],
)
def test_what_latent_attention_keeps_is_planned(
    more: tuple[str, ...], tolerance: float
) -> None:
    words = (*LATENT, "parallelism.recompute=none", *more)
    (job, fewer), (_, deeper) = (rehearsed(depth, words) for depth in DEPTHS)
    each = (most(deeper)["activations"] - most(fewer)["activations"]) / (DEPTHS[1] - DEPTHS[0])
    planned = layer_bytes_per_token(job) * job.microbatch_tokens
    assert each == pytest.approx(planned, rel=tolerance)


@pytest.mark.long
@pytest.mark.parametrize("shared", [SHARED_GATE[:1], SHARED_GATE], ids=["plain", "gated"])
def test_an_expert_that_all_tokens_share_is_planned(shared: tuple[str, ...]) -> None:
    kept = []
    for more in ((), shared):
        words = ("recipe=mula7b_a1b", "parallelism.recompute=none", *more)
        job, found = rehearsed(4, words)
        planned = 4 * layer_bytes_per_token(job) * job.microbatch_tokens
        kept.append((planned, most(found)["activations"]))
    (planned, found_), (planned_more, found_more) = kept
    assert found_more - found_ == pytest.approx(planned_more - planned, rel=0.02)


@pytest.mark.long
def test_a_dense_layer_before_those_with_experts_is_planned() -> None:
    dense = "model.dense_mlp={_target_: components.model.mlp.MLP, _partial_: true, "
    dense += "ffn_dim: 768, activation: silu, gated: true, bias: false}"
    words = ("recipe=mula7b_a1b", "parallelism.recompute=none")
    (_, plain), (job, found) = (rehearsed(4, (*words, *more)) for more in ((), (dense,)))
    (other, experts, _), (alike, layers, _) = job.layer_kinds((0,))
    assert (experts, layers) == (3, 1)
    with_experts, dense_alone = map(layer_bytes_per_token, (other, alike))
    apart = (most(plain)["activations"] - most(found)["activations"]) / job.microbatch_tokens
    # A difference of two layers that are nearly alike: within a twentieth of one.
    assert apart == pytest.approx(with_experts - dense_alone, abs=0.05 * dense_alone)


@pytest.mark.long
@pytest.mark.parametrize("part", [GATE, SINKS, "model.positions.rotary_fraction=0.25"])
@pytest.mark.parametrize("tensor", [1, 2])
def test_newer_parts_of_attention_are_planned(part: str, tensor: int) -> None:
    assert_planned("recipe=teuken7b", f"parallelism.tensor={tensor}", part, QK_NORM)


@pytest.mark.long
@pytest.mark.parametrize("over", ["all_heads", "each_head"])
@pytest.mark.parametrize("tensor", [1, 2])
def test_norms_of_queries_and_keys_are_planned(over: str, tensor: int) -> None:
    assert_planned(
        *("recipe=teuken7b", f"parallelism.tensor={tensor}"),
        *(f"model.attention.qk_norm_over={over}", QK_NORM),
    )


@pytest.mark.long
def test_norms_on_both_sides_are_planned() -> None:
    """And a gated GELU; multiplied queries take the place of those that were turned."""
    assert_planned(*GEMMA3)


@pytest.mark.long
def test_a_clamped_gate_is_planned() -> None:
    assert_planned("recipe=teuken7b", QK_NORM, *CLAMPED)


@pytest.mark.long
@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_biases_of_experts_and_clamped_gates_are_planned(recompute: str) -> None:
    kept = []
    for changes in ((), (*CLAMPED, "model.mlp.bias=true")):
        words = ("recipe=mula7b_a1b", f"parallelism.recompute={recompute}", *changes)
        job, trace = rehearsed(4, words)
        planned = 4 * layer_bytes_per_token(job) * job.microbatch_tokens
        kept.append((planned, most(trace)["activations"]))
    (planned, measured), (planned_clamped, measured_clamped) = kept
    saved = planned - planned_clamped
    assert measured - measured_clamped == pytest.approx(saved, rel=0.02)


@pytest.mark.long
@pytest.mark.parametrize("activation", ["xielu", "relu_squared"])
def test_an_mlp_of_two_maps_is_planned(activation: str) -> None:
    words = (QK_NORM, "model.mlp.gated=false", f"model.mlp.activation={activation}")
    assert_planned("recipe=teuken7b", *words)


def assert_planned(*words: str) -> None:
    words = (*words, "parallelism.recompute=none")
    (job, fewer), (_, more) = (rehearsed(depth, words) for depth in DEPTHS)
    each = (most(more)["activations"] - most(fewer)["activations"]) / (DEPTHS[1] - DEPTHS[0])
    planned = layer_bytes_per_token(job) * job.microbatch_tokens
    assert each == pytest.approx(planned, rel=0.02)
