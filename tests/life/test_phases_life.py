"""A run of two lengths, the longer packed, crosses its border and resumes on both sides."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.life.conftest import Program, entries, tiny

LONG = (
    "budget: {sequence_length: 128}, model: {positions: {base: 1e6}}, "
    "data: {packing: best_fit, document_mask: true}"
)
WORDS = tiny(
    "budget.total_tokens=4_096",
    "checkpoint.every_tokens=1_024",
    "checkpoint.keep=9",
    "evaluation.every_tokens=4_096",
    "evaluation.max_windows_per_source=2",
)
BORDER, STEPS = 4, 8
ALIKE = ("step", "tokens", "loss", "lr", "gradient_norm", "samples_digest")


def steps(run: Path) -> list[dict[str, object]]:
    return [{key: one[key] for key in ALIKE} for one in entries(run, "step")]


@pytest.fixture(scope="module")
def whole(home: Path) -> Path:
    return home / "whole"


@pytest.fixture
def run(whole: Path, program: Program) -> Path:
    if not whole.exists():
        said = program(
            *WORDS, f"run={whole}", f"phases={{long: {{from_tokens: 2_048, {LONG}}}}}"
        )
        assert "the run continues with phase long" in said.stderr
        assert re.search(r"packed: eu, [\d,]+ rows of 128 tokens, 9\d\.\d\d% full", said.stderr)
    return whole


def test_a_run_continues_with_longer_sequences(run: Path) -> None:
    found = steps(run)
    assert [one["tokens"] for one in found] == [512 * step for step in range(1, STEPS + 1)]
    results = json.loads((run / "results.json").read_text())
    assert results["status"] == "finished"
    assert results["steps"] == STEPS
    assert not results["goes_on"]
    (stop,) = entries(run, "stop")
    assert (stop["step"], stop["cause"]) == (BORDER, "a phase of the run ends")
    (resumed,) = entries(run, "resume")
    assert resumed["step"] == BORDER


def killed(run: Path, copy: Path, kept: int) -> Path:
    """Leave the checkpoints of the first ``kept`` steps."""
    shutil.copytree(run, copy)
    (copy / "results.json").unlink()
    for checkpoint in sorted((copy / "checkpoints").glob("tokens-*")):
        if int(checkpoint.name.partition("-")[2]) > 512 * kept:
            shutil.rmtree(checkpoint)
    return copy


@pytest.mark.parametrize("kept", [2, pytest.param(4, marks=pytest.mark.long), 6])
def test_a_killed_run_resumes_on_both_sides_of_the_border(run, program, tmp_path, kept):
    copy = killed(run, tmp_path / "killed", kept)
    program(f"resume={copy}")
    assert steps(copy)[STEPS:] == steps(run)[kept:]


def test_a_damaged_checkpoint_at_the_border_resumes_the_previous_phase(run, program, tmp_path):
    copy = killed(run, tmp_path / "damaged", BORDER)
    *_, last = sorted((copy / "checkpoints").glob("tokens-*"))
    file = max(last.iterdir(), key=lambda one: one.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    said = program(f"resume={copy}").stderr
    before, after = said.index("phase before the first"), said.index("phase long")
    assert before < after
    assert steps(copy)[STEPS:] == steps(run)[2:]


@pytest.mark.long
def test_a_phase_can_reset_the_optimizer(run: Path, program: Program) -> None:
    fresh = run.parent / "fresh"
    phase = f"phases={{long: {{from_tokens: 2_048, fresh_optimizer: true, {LONG}}}}}"
    program(*WORDS, f"run={fresh}", phase)
    found, kept = steps(fresh), steps(run)
    assert found[: BORDER + 1] == kept[: BORDER + 1]  # the first long step begins alike
    assert [one["samples_digest"] for one in found] == [one["samples_digest"] for one in kept]
    assert found[BORDER + 1]["loss"] != kept[BORDER + 1]["loss"]


@pytest.mark.long
@pytest.mark.parametrize("axis", ["context", "tensor"])
def test_a_phase_in_another_layout_has_the_losses_of_one_process(run, program, axis):
    """Two data ranks, then two of another axis: of a checkpoint each takes its part."""
    two = run.parent / axis
    phase = f"phases={{long: {{from_tokens: 2_048, {LONG}, parallelism: {{{axis}: 2}}}}}}"
    program(*WORDS, f"run={two}", "cluster.ranks=2", phase)
    for one, other in zip(steps(two), steps(run), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-4)
        assert one["samples_digest"] == other["samples_digest"]
