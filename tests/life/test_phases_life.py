"""A run of two lengths: it crosses its border by itself, and resumes on both sides alike."""

import json
import shutil
from pathlib import Path

import pytest

from tests.life.conftest import TINY, Program, entries

LONG = "budget: {sequence_length: 128}, model: {positions: {base: 1e6}}"
WORDS = (
    *(word for word in TINY if not word.startswith(("evaluation", "checkpoint", "budget.tot"))),
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
        assert "the next phase begins" in said.stderr
    return whole


def test_a_run_goes_on_by_itself_with_longer_sequences(run: Path) -> None:
    found = steps(run)
    assert [one["tokens"] for one in found] == [512 * step for step in range(1, STEPS + 1)]
    results = json.loads((run / "results.json").read_text())
    assert results["status"] == "finished"
    assert results["steps"] == STEPS
    assert not results["goes_on"]
    (stop,) = entries(run, "stop")
    assert (stop["step"], stop["cause"]) == (BORDER, "a phase of the run ends here")
    (resumed,) = entries(run, "resume")
    assert resumed["step"] == BORDER


@pytest.mark.parametrize("kept", [2, 4, 6])
def test_a_run_that_was_killed_computes_the_same_on_both_sides(
    run: Path, program: Program, tmp_path: Path, kept: int
) -> None:
    copy = tmp_path / "killed"
    shutil.copytree(run, copy)
    (copy / "results.json").unlink()
    for checkpoint in sorted((copy / "checkpoints").glob("tokens-*")):
        if int(checkpoint.name.partition("-")[2]) > 512 * kept:
            shutil.rmtree(checkpoint)
    program(f"resume={copy}")
    assert steps(copy)[STEPS:] == steps(run)[kept:]
