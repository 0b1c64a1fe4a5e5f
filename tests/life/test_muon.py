"""A run with Muon is saved in shards, goes on in the same bits, and in another layout."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

from tests.life.conftest import TINY, Program, entries

CUT = ("budget.total_tokens", "checkpoint.every_tokens", "evaluation.every_tokens")
WORDS = (
    *(word for word in TINY if not word.startswith(CUT)),
    "budget.total_tokens=3_072",
    "checkpoint.every_tokens=1_536",
    "evaluation.every_tokens=3_072",
    "optimizer=muon",
    "optimizer.momentum_start=0.5",
    "optimizer.momentum_warmup_tokens=2_560",
    "model.z_loss=1e-3",
    "model.initialization.cutoff=2.0",
    "cluster.ranks=2",
    "parallelism.zero=1",
)
TOLERANCE = 1e-4  # relative: other sums, whose last bits a rounding to bfloat16 may enlarge


def last(run: Path) -> Path:
    return sorted((run / "checkpoints").glob("tokens-*"))[-1]


def saved(checkpoint: Path) -> dict[str, Tensor]:
    files = sorted(checkpoint.glob("*.safetensors"))
    return {name: x for file in files for name, x in load_file(file).items()}


@pytest.mark.long
def test_two_ranks_go_on_in_the_same_bits_and_one_process_nearly(
    home: Path, program: Program, tmp_path: Path
) -> None:
    run, moved = home / "muon", tmp_path / "moved"
    program(*WORDS, f"run={run}")
    expected, steps = saved(last(run)), entries(run, "step")
    assert len(steps) == 6
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert all(0.02 < one["auxiliary_loss"] < 0.1 for one in steps)  # 1e-3 x log(768)^2
    query = "optimizer.state.layers.0.attention.query.weight."
    assert {name for name in expected if name.startswith(query)} >= {f"{query}momentum"}
    assert not any(name.startswith(f"{query}exp_avg") for name in expected)
    assert any(name.startswith("optimizer.state.embedding.weight.exp_avg") for name in expected)

    shutil.copytree(run, moved)
    program(f"resume={run}", "at_tokens=1_536")
    found = saved(last(run))
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in expected)

    program(f"resume={moved}", "at_tokens=1_536", "parallelism.data=1")
    for one, other in zip(entries(moved, "step")[-3:], steps[-3:], strict=True):
        assert one["step"] == other["step"]
        assert one["loss"] == pytest.approx(other["loss"], rel=TOLERANCE)
