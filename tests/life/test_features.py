"""What the train step does for experts, ramps, float16, bfloat16 sums, dropout, documents."""

import math
from pathlib import Path

import pytest

from tests.life.conftest import Program, entries, tiny


def few(recipe: str, *words: str) -> list[str]:
    return tiny(f"recipe={recipe}", "budget.total_tokens=4_096", *words)


def test_experts_are_trained_with_their_auxiliary_loss(home: Path, program: Program) -> None:
    run = home / "experts"
    program(*few("mula7b_a1b", "model.mlp.num_experts=4", f"run={run}"))
    taken = entries(run, "step")
    assert all(0.01 < entry["auxiliary_loss"] < 0.1 for entry in taken)  # 0.01 x top-k, or more
    assert all(1 <= entry["expert_load"] <= 4 for entry in taken)
    assert taken[-1]["loss"] < taken[0]["loss"]


def test_a_zero_initialized_model_learns_with_muon_and_logs_its_z_loss(home, program):
    run = home / "nanochat"
    words = ("model.z_loss=1e-4", "parallelism.compile=none")
    program(*few("nanochat_d20", *words, f"run={run}"))
    taken = entries(run, "step")
    assert taken[0]["loss"] == pytest.approx(math.log(768), rel=1e-5)  # its head is all zeros
    assert taken[0]["auxiliary_loss"] == pytest.approx(1e-4 * math.log(768) ** 2, rel=1e-5)
    assert taken[-1]["loss"] < taken[0]["loss"] - 0.3


def test_learning_rates_follow_warmup_stable_and_decay(home: Path, program: Program) -> None:
    run = home / "wsd"
    words = ("schedule=wsd", "schedule.warmup_from=0.0", "budget.ramp_up=none")
    lengths = ("schedule.warmup_tokens=1_024", "schedule.total_tokens=4_096")
    decay = ("schedule.decay_tokens=2_048", "schedule.end=0.0", "schedule.start=1.0")
    program(*few("bloom560m", *words, *lengths, *decay, f"run={run}"))
    taken = entries(run, "step")
    peak = taken[3]["lr"]
    rates = [one["lr"] / peak for one in taken]  # eight steps, of 512 tokens each
    assert rates == pytest.approx([0.0, 0.5, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25])
    assert taken[-1]["loss"] < taken[0]["loss"]


def test_a_batch_ramp_starts_with_smaller_steps(home: Path, program: Program) -> None:
    run = home / "ramp"
    ramp = "budget.ramp_up={start_tokens: 256, increment_tokens: 256, over_tokens: 1_024}"
    program(*few("bloom176b", ramp, f"run={run}"))
    counts = [entry["tokens"] for entry in entries(run, "step")]
    sizes = [after - before for before, after in zip([0, *counts], counts, strict=False)]
    assert sizes[:4] == [256, 256, 256, 256]
    assert set(sizes[6:]) == {512}
    assert counts[-1] >= 4_096


def test_float16_skips_steps_that_overflow(home: Path, program: Program) -> None:
    run = home / "float16"
    scale = "precision.loss_scale={initial: 1.0e+12, window: 500, hysteresis: 1, minimum: 1.0}"
    program(*few("bloom560m", "precision.compute=float16", scale, f"run={run}"))
    taken = entries(run, "step")
    scales = [entry["loss_scale"] for entry in taken]
    assert scales[0] > scales[-1] >= 1
    assert math.isnan(taken[0]["gradient_norm"])  # JSON has no infinity
    assert math.isfinite(taken[-1]["loss"])


@pytest.mark.quick("parallelism.recompute=[attention,norms]-False", "model.dropout=0.1-True")
@pytest.mark.parametrize(
    ("word", "differs"),
    [
        ("parallelism.recompute=full", False),
        ("parallelism.recompute=[attention,norms]", False),
        ("precision.accumulate=bfloat16", True),
        ("data.document_mask=true", True),
        ("model.dropout=0.1", True),
    ],
)
def test_an_option_changes_the_losses_or_only_the_memory(home, program, word, differs):
    plain = home / "plain"
    if not plain.exists():
        program(*few("teuken7b", f"run={plain}"))
    run = home / word.replace("=", "-").replace("[", "").replace("]", "").replace(",", "-")
    program(*few("teuken7b", word, f"run={run}"))
    before = [entry["loss"] for entry in entries(plain, "step")]
    after = [entry["loss"] for entry in entries(run, "step")]
    assert (before != after) is differs
    assert after == pytest.approx(before, rel=0.05)


@pytest.mark.long
def test_a_run_starts_with_exported_weights_of_the_same_model(home, program):
    first, folder, second = home / "first", home / "weights", home / "second"
    program(*few("teuken7b", "budget.total_tokens=16_384", f"run={first}"))
    program("action=export", f"run={first}", f"file={folder}")
    begin = f"model.init_from={folder}"
    program(*few("teuken7b", begin, f"run={second}"))
    scratch, trained = entries(first, "step")[0]["loss"], entries(first, "step")[-1]["loss"]
    begun = entries(second, "step")[0]["loss"]
    assert begun < scratch - (scratch - trained) / 2
    refused = home / "refused"
    done = program(*few("teuken7b", begin, "model.mlp.ffn_dim=72", f"run={refused}"), status=2)
    assert "ffn_dim" in done.stderr or "intermediate_size" in done.stderr
    assert not refused.exists()
