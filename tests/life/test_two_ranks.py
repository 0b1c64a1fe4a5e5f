"""Runs of two ranks resume in the same bits and compute what one process computes.

The ranks start twice for all cases: they train every whole run, then resume what a kill in the
middle would have left of each.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.life.conftest import (
    act,
    check_same_bits,
    column,
    entries,
    forget_the_end,
    saved,
    tiny,
)
from tests.life.together import begin, train_together

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]

TWO = ("cluster.ranks=2", "evaluation.max_windows_per_source=4")
BFLOAT16 = ("precision.compute=bfloat16", "precision.weights=bfloat16")
DEEP = ("model.num_layers=4", "parallelism.microbatch_sequences=1", "parallelism.pipeline=2")
NORM = (
    "{_target_: components.model.norms.Norm, _partial_: true, eps: 1e-5, center: false, "
    "weight: true, bias: false}"
)
MIXER = "_partial_: true, num_heads: 4, key_dim: 6, value_dim: 12, conv_size: 4"
HYBRID = (
    "model.num_layers=4",
    "model.pattern=delta/mlp|mamba/mlp|kimi|attention/mlp",
    "model.mixers={delta: {_target_: components.model.mixers.gated_delta_net.GatedDeltaNet, "
    f"{MIXER}, negative_eigenvalues: true, norm: {NORM}}}, "
    "mamba: {_target_: components.model.mixers.mamba2.Mamba2, "
    f"{MIXER}, num_key_heads: 2, conv_bias: true, norm: {NORM}}}, "
    "kimi: {_target_: components.model.mixers.kimi_delta.KimiDelta, "
    f"{MIXER}, gate_rank: 3, norm: {NORM}}}}}",
)
MUON = (
    *("optimizer=muon", "optimizer.momentum_start=0.5", "parallelism.zero=1"),
    *("optimizer.momentum_warmup_tokens=2_560", "model.z_loss=1e-3"),
    "model.initialization.cutoff=2.0",
)
ADEMAMIX = (
    *("optimizer=ademamix", "optimizer.beta3=0.99", "optimizer.alpha_warmup_tokens=2_500"),
    *("model.z_loss=1e-3", "model.initialization.cutoff=2.0", "parallelism.zero=1"),
)
FURTHER = (
    "model.mtp={_target_: components.model.mtp.MultiTokenPrediction, _partial_: true, "
    "depth: 2, loss_weight: 0.3}",
    *("data.document_mask=true", "model.tied_embeddings=false", "parallelism.pipeline=2"),
)
RESUMED = {
    # Weights in float32 are killed in test_train.py.
    "masters, sums divided": (*BFLOAT16, "parallelism.zero=2"),
    "masters, all divided": ("precision.compute=bfloat16", "parallelism.zero=3"),
    "masters, sums in bfloat16": (
        *(*BFLOAT16, "precision.accumulate=bfloat16", "precision.reduce=bfloat16"),
    ),
    "no masters": (*BFLOAT16, "precision.master=bfloat16", "precision.accumulate=bfloat16"),
    "float16": ("precision=fp16", "precision.loss_scale.initial=65_536"),
    "zbv": (*DEEP, "parallelism.stages_per_rank=2", "parallelism.schedule=zbv"),
    "dualpipev": (*DEEP, "parallelism.stages_per_rank=2", "parallelism.schedule=dualpipev"),
    "hybrid": ("parallelism.context=2", *HYBRID),
    "muon": MUON,
    "ademamix": ADEMAMIX,
    "further tokens": FURTHER,
}
STEPS, SAVED = 12, 6
LENGTH = ("budget.total_tokens=6_144", "checkpoint.every_tokens=3_072")

# Ranks add the same float32 gradients in another order; context ranks attend in parts. A number
# that then rounds to the next one in float8 moves by 1/16: 1.4e-5 of a loss was seen.
FLOAT8, FLOAT8_TOLERANCE = ("precision=fp8", "budget.total_tokens=3_072"), 1e-4
FLOAT16 = (  # far above what its gradients bear, so that the first steps overflow somewhere
    *("precision=fp16", "precision.compute=float16", "budget.total_tokens=4_096"),
    *("precision.loss_scale.initial=134_217_728", "precision.loss_scale.hysteresis=1"),
    # One process adds the two uses of a tied weight up in float16, stages in float32.
    "model.tied_embeddings=false",
)
ALONE = {"float8": FLOAT8, "float16": FLOAT16, "float32": ("budget.total_tokens=4_096",)}
COMPARED: dict[str, tuple[str, tuple[str, ...], float]] = {  # with which, how near
    "float8, data": ("float8", ("data=2",), FLOAT8_TOLERANCE),
    "float8, sharded": (*("float8", ("data=2", "zero=3", "recompute=full"), FLOAT8_TOLERANCE),),
    "float8, context": ("float8", ("context=2",), FLOAT8_TOLERANCE),
    "float8, pipeline": ("float8", ("pipeline=2",), FLOAT8_TOLERANCE),
    "float16, pipeline": ("float16", ("pipeline=2",), 2e-3),
    "float32, data": ("float32", ("data=2",), 2e-5),
    "float32, sharded": ("float32", ("data=2", "zero=3"), 2e-5),  # losses are near 6
}
EXPERTS = (
    *("recipe=mula7b_a1b", "model.mlp.num_experts=4", "budget.total_tokens=2_048"),
    *("parallelism.expert=2", "parallelism.expert_dispatch=all_to_all"),
)
BOUNDS = {
    bound: (*EXPERTS, f"parallelism.expert_capacity_factor={bound}") for bound in ("null", "1")
}


def killed_copy(run: Path) -> Path:
    """Copy what a kill between the two checkpoints would have left."""
    return forget_the_end(Path(shutil.copytree(run, run.with_name(f"{run.name}-killed"))))


Run = Callable[[str], Path]


@pytest.fixture(scope="module")
def run(home: Path) -> Run:
    """All runs of two ranks."""
    layouts = {
        name: (*ALONE[alone], *(f"parallelism.{word}" for word in words))
        for name, (alone, words, _) in COMPARED.items()
    }
    named = {name: (*LENGTH, *words) for name, words in RESUMED.items()} | layouts | BOUNDS
    runs = {name: begin(home, name, *tiny(*TWO, *words)) for name, words in named.items()}
    train_together([*runs.values()], 2)
    return runs.__getitem__


@pytest.fixture(scope="module")
def resumed(run: Run) -> Run:
    runs = {name: killed_copy(run(name)) for name in RESUMED}
    train_together([*runs.values()], 2)
    return runs.__getitem__


def check_resumed(whole: Path, resumed: Path) -> None:
    assert column(resumed, "step", "resume") == [SAVED]
    assert column(resumed, "loss")[STEPS:] == column(whole, "loss")[SAVED:]
    assert column(resumed, "loss", "held_out")[-1:] == column(whole, "loss", "held_out")[-1:]
    check_same_bits(resumed, whole)


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_ends_in_the_same_bits(name: str, run: Run, resumed: Run) -> None:
    losses = column(run(name), "loss")
    assert losses[-1] < losses[0] - 0.05
    check_resumed(run(name), resumed(name))


def test_a_hybrid_model_of_one_process_resumes_in_the_same_bits(home: Path) -> None:
    whole = home / "one-process"
    assert act(home, *tiny(*HYBRID, *LENGTH), f"run={whole}") == 0
    copy = killed_copy(whole)
    assert act(home, f"resume={copy}") == 0
    check_resumed(whole, copy)


# Relative: other sums, whose last bits a rounding to bfloat16 may enlarge in Muon.
@pytest.mark.parametrize(("name", "tolerance"), [("muon", 1e-4), ("ademamix", 1e-5)])
def test_one_process_resumes_with_nearly_the_same_losses(name, tolerance, run, home):
    moved = Path(shutil.copytree(run(name), home / f"{name}-moved"))
    assert act(home, f"resume={moved}", "at_tokens=3_072", "parallelism.data=1") == 0
    found, expected = column(moved, "loss")[STEPS:], column(run(name), "loss")[SAVED:]
    assert found == pytest.approx(expected, rel=tolerance)


def test_muon_saves_momentum_of_matrices_and_adam_moments_of_others(run: Run) -> None:
    assert all(0.02 < one < 0.1 for one in column(run("muon"), "auxiliary_loss"))  # the z-loss
    names = saved(run("muon"))
    query = "optimizer.state.layers.0.attention.query.weight."
    assert f"{query}momentum" in names
    assert not any(name.startswith(f"{query}exp_avg") for name in names)
    assert any(name.startswith("optimizer.state.embedding.weight.exp_avg") for name in names)


def test_ademamix_keeps_a_slow_average_of_every_weight(run: Run) -> None:
    kept = saved(run("ademamix"))
    slow = [name for name in kept if name.endswith(".exp_avg_slow")]
    assert len(slow) == sum(name.startswith("model.") for name in kept)
    assert all(kept[name].any() for name in slow)


def test_further_tokens_have_a_loss_and_are_left_out_of_an_export(run, resumed, home, program):
    whole = run("further tokens")
    further = column(whole, "mtp_loss")
    assert further[-1] < further[0]
    assert column(resumed("further tokens"), "mtp_loss")[STEPS:] == further[SAVED:]
    depth = ("layer.attention.query.weight", "projection.weight", "embedding_norm.weight")
    assert {f"model.mtp.{layer}.{name}" for layer in (2, 3) for name in depth} <= {
        *saved(whole)
    }
    program("action=export", f"run={whole}", f"file={home / 'exported'}")
    exported = load_file(home / "exported" / "model.safetensors")
    assert "lm_head.weight" in exported
    assert not any("mtp" in name or ".2." in name for name in exported)


@pytest.fixture(scope="module")
def alone(home: Path) -> Run:
    for name, words in ALONE.items():
        assert act(home, *tiny(*words, TWO[1]), f"run={home}/alone-{name}") == 0
    return lambda name: home / f"alone-{name}"


@pytest.mark.parametrize("name", COMPARED)
def test_two_ranks_compute_the_losses_of_one_process(name: str, run: Run, alone: Run) -> None:
    reference, _, tolerance = COMPARED[name]
    for kind in ("step", "held_out"):
        found, expected = (column(one, "loss", kind) for one in (run(name), alone(reference)))
        assert found == pytest.approx(expected, rel=tolerance), kind
    digests = [column(one, "samples_digest") for one in (run(name), alone(reference))]
    assert digests[0] == digests[1]


def test_stages_skip_the_float16_steps_that_one_process_skips(run: Run, alone: Run) -> None:
    scales = column(alone("float16"), "loss_scale")
    assert len(set(scales)) > 1
    assert column(run("float16, pipeline"), "loss_scale") == scales


def test_a_step_above_the_expert_capacity_is_repeated_with_exact_sizes(run: Run) -> None:
    for key in ("loss", "gradient_norm", "samples_digest"):
        assert column(run("1"), key) == pytest.approx(column(run("null"), key))
    events = entries(run("1"), "expert_overflow")
    assert [one["step"] for one in events] == [1, 2, 3, 4]  # no router is that even
    assert events[0]["evidence"]["pairs"] > 0
    for said in ("parallelism.expert_capacity_factor=1: ", "set a larger factor, or null"):
        assert said in events[0]["cause"]
    assert entries(run("null"), "expert_overflow") == []
