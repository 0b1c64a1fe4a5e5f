"""A run with AdEMAMix goes on in the same bits within its warm-ups, and in another layout."""

import shutil
from pathlib import Path

import pytest

from tests.life.conftest import Program, entries
from tests.life.test_muon import WORDS, last, saved

CHOSEN = (
    *(word for word in WORDS if not word.startswith("optimizer")),
    *("optimizer=ademamix", "optimizer.beta3=0.99", "optimizer.alpha_warmup_tokens=2_500"),
)


@pytest.mark.long
def test_two_ranks_go_on_in_the_same_bits_and_one_process_nearly(
    home: Path, program: Program, tmp_path: Path
) -> None:
    run, moved = home / "ademamix", tmp_path / "moved"
    program(*CHOSEN, f"run={run}")
    expected, steps = saved(last(run)), entries(run, "step")
    assert steps[-1]["loss"] < steps[0]["loss"]
    weights = {name for name in expected if name.startswith("model.")}
    slow = {name for name in expected if name.endswith(".exp_avg_slow")}
    assert len(slow) == len(weights)
    assert all(expected[name].any() for name in slow)

    shutil.copytree(run, moved)
    program(f"resume={run}", "at_tokens=1_536")
    found = saved(last(run))
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in expected)

    program(f"resume={moved}", "at_tokens=1_536", "parallelism.data=1")
    for one, other in zip(entries(moved, "step")[-3:], steps[-3:], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
