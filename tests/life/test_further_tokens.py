"""A run that predicts further tokens: its two losses, its resumption, and what is exported."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.life.conftest import TINY, Program, entries
from tests.life.test_muon import CUT, last, saved

WORDS = (
    *(word for word in TINY if not word.startswith(CUT)),
    "model.mtp={_target_: components.model.mtp.MultiTokenPrediction, _partial_: true, "
    "depth: 2, loss_weight: 0.3}",
    "data.document_mask=true",
    "model.tied_embeddings=false",
    "budget.total_tokens=4_096",
    "checkpoint.every_tokens=2_048",
    "evaluation.every_tokens=4_096",
    "cluster.ranks=2",
    "parallelism.pipeline=2",
)


@pytest.mark.long
def test_both_losses_fall_and_a_run_goes_on_in_the_same_bits(
    home: Path, program: Program
) -> None:
    run, folder = home / "further", home / "exported"
    program(*WORDS, f"run={run}")
    expected, steps = saved(last(run)), entries(run, "step")
    assert len(steps) == 8
    for key in ("loss", "mtp_loss"):
        assert steps[-1][key] < steps[0][key]
    depth = {"layer.attention.query.weight", "projection.weight", "embedding_norm.weight"}
    for name in depth:
        assert {f"model.mtp.{layer}.{name}" for layer in (2, 3)} <= expected.keys()
    program(f"resume={run}", "at_tokens=2_048")
    found = saved(last(run))
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in expected)
    again = entries(run, "step")[-4:]
    assert [one["mtp_loss"] for one in again] == [one["mtp_loss"] for one in steps[-4:]]
    program("action=export", f"run={run}", f"file={folder}")
    names = load_file(folder / "model.safetensors")
    assert "lm_head.weight" in names
    assert not any("mtp" in name or ".2." in name for name in names)
