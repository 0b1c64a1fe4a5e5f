"""Layouts as a user meets them: killed and resumed, and judged like a single process."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.life.conftest import TINY, Program, act, command, entries, environment
from tests.life.moved import killed_copy

pytestmark = pytest.mark.long

# Ranks add the same fp32 numbers in another order; losses are near 6.
LOSS_TOLERANCE = 2e-5
# An odd length: what tensor ranks need not slice, they need not shorten either.
OWN = (
    "budget.sequence_length=63",
    "budget.global_batch_tokens=504",
    "budget.total_tokens=6_048",
    "checkpoint.every_tokens=3_024",
    "evaluation.every_tokens=3_024",
)
KEYS = tuple(word.partition("=")[0] for word in OWN)
SHORT = (*(word for word in TINY if word.partition("=")[0] not in KEYS), *OWN)
GRID = (
    "parallelism.pipeline=2",
    "parallelism.tensor=2",
    "parallelism.sequence_parallel=false",
)
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
STEPS = 12
SAVED_STEPS = 6


def start(home: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*SHORT, *words),
        cwd=home,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(home: Path, name: str, *words: str) -> Path:
    run, named = home / name, {word.partition("=")[0] for word in words}
    short = (word for word in SHORT if word.partition("=")[0] not in named)
    assert act(home, *short, *words, f"run={run}") == 0
    return run


@pytest.fixture(scope="module")
def alone(home: Path) -> Path:
    """The run that one process makes of it."""
    return finish(home, "alone")


@pytest.fixture(scope="module")
def grid(alone: Path, home: Path) -> Path:
    """Two stages of two tensor ranks, uninterrupted; the data are prepared by then."""
    return finish(home, "grid", "cluster.ranks=4", *GRID)


def assert_same_losses(found: Path, expected: Path) -> None:
    for kind in ("step", "held_out"):
        pairs = zip(entries(found, kind), entries(expected, kind), strict=True)
        for one, other in pairs:
            assert one["loss"] == pytest.approx(other["loss"], rel=LOSS_TOLERANCE), kind
    samples = [
        [entry["samples_digest"] for entry in entries(r, "step")] for r in (found, expected)
    ]
    assert samples[0] == samples[1]


def test_stages_of_tensor_ranks_find_the_losses_of_one_process(grid: Path, alone: Path) -> None:
    assert_same_losses(grid, alone)


def test_sharded_weights_find_the_losses_of_one_process(alone: Path, home: Path) -> None:
    run = finish(home, "sharded", "cluster.ranks=2", "parallelism.zero=3")
    assert_same_losses(run, alone)


@pytest.mark.parametrize("schedule", ["zbv", "dualpipev"])
def test_a_v_of_stages_goes_on_with_its_bits(
    home: Path, program: Program, schedule: str
) -> None:
    deep = ("model.num_layers=4", "parallelism.microbatch_sequences=1")
    places = ("pipeline=2", "stages_per_rank=2", f"schedule={schedule}")
    words = (*deep, "cluster.ranks=2", *(f"parallelism.{key}" for key in places))
    assert_goes_on_with_its_bits(finish(home, schedule, *words), program)


def assert_goes_on_with_its_bits(run: Path, program: Program) -> None:
    resumed = killed_copy(run, run.with_name(f"{run.name}-killed"))
    program(f"resume={resumed}")
    for kind in ("step", "held_out"):
        found, expected = (
            {one["step"]: one["loss"] for one in entries(either, kind)}
            for either in (resumed, run)
        )
        assert found == expected


@pytest.mark.parametrize("context", [1, 2])
def test_a_hybrid_model_goes_on_with_its_bits(
    home: Path, program: Program, context: int
) -> None:
    words = (f"cluster.ranks={context}", f"parallelism.context={context}", *HYBRID)
    length = "budget.sequence_length=64", "budget.global_batch_tokens=512"
    tokens = "budget.total_tokens=6_144", "checkpoint.every_tokens=3_072"
    run = finish(home, f"hybrid-{context}", *words, *length, *tokens)
    first, *_, last = [entry["loss"] for entry in entries(run, "step")]
    assert last < first - 0.05
    assert_goes_on_with_its_bits(run, program)


def test_killed_after_a_checkpoint_the_printed_command_ends_in_the_same_losses(
    grid: Path, home: Path, program: Program
) -> None:
    run = home / "killed"
    process = start(home, "cluster.ranks=4", *GRID, f"run={run}")
    while not entries(run, "checkpoint"):
        assert process.poll() is None
        time.sleep(0.02)
    ranks = children(process.pid)[0]  # the agent, which leads the group of its ranks
    os.killpg(ranks, signal.SIGKILL)
    process.kill()
    _, err = process.communicate(timeout=600)
    printed = re.search(r"run\.py (resume=\S+)\)", err)
    assert printed is not None, err[-4000:]
    assert printed.group(1) == f"resume={run}"
    assert not (run / "results.json").exists()

    program(printed.group(1))
    (resumed,) = entries(run, "resume")
    assert resumed["step"] >= SAVED_STEPS
    steps = entries(run, "step")
    assert {entry["step"] for entry in steps} == set(range(1, STEPS + 1))
    computed = [entry for entry in steps[-STEPS:] if entry["step"] > resumed["step"]]
    expected = {entry["step"]: entry["loss"] for entry in entries(grid, "step")}
    assert computed[-1]["step"] == STEPS
    assert [entry["loss"] for entry in computed] == [expected[e["step"]] for e in computed]
    last, whole = entries(run, "held_out")[-1], entries(grid, "held_out")[-1]
    assert (last["step"], last["loss"]) == (whole["step"], whole["loss"])


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]
