"""A run in float8, emulated: its loss beside bfloat16's, its resume and export."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.life.conftest import (
    TINY,
    Program,
    act,
    check_same_bits,
    column,
    entries,
    forget_the_end,
    saved,
)

pytestmark = pytest.mark.long

# Of a loss near 4.3; two runs in bfloat16 that differ by a rounding are as far apart.
BFLOAT16_TOLERANCE = 5e-3


@pytest.fixture(scope="module")
def whole(home: Path) -> Path:
    run = home / "whole"
    assert act(home, *TINY, "precision=fp8", f"run={run}") == 0
    return run


def test_the_float8_loss_is_near_the_bfloat16_loss(whole, home, program):
    program(*TINY, "precision.compute=bfloat16", f"run={home / 'bfloat16'}")
    float8, bfloat16 = (column(run, "loss", "held_out") for run in (whole, home / "bfloat16"))
    assert float8[-1] < 0.7 * column(whole, "loss")[0]
    assert float8 == pytest.approx(bfloat16, rel=BFLOAT16_TOLERANCE)
    assert float8 != bfloat16
    (start,) = entries(whole, "start")
    assert start["evidence"]["float8"].startswith("emulated: a cpu rounds the numbers")


def test_a_resumed_float8_run_has_the_same_bits(whole: Path, program: Program) -> None:
    run = Path(shutil.copytree(whole, whole.with_name("resumed")))
    forget_the_end(run)
    program(f"resume={run}")
    assert column(run, "step", "resume") == [18]
    check_same_bits(run, whole)


def test_a_float8_export_has_the_trained_weights(whole, home, program):
    program("action=export", f"run={whole}", f"file={home / 'hf'}")
    exported = load_file(home / "hf" / "model.safetensors")
    down = saved(whole)["model.layers.1.mlp.down.weight"]
    assert down.equal(exported["model.layers.1.mlp.down_proj.weight"])
    assert not any("scale" in name for name in exported)
