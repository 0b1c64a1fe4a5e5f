"""A run in float8, emulated: its loss beside bfloat16's, its layouts, resume and export."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.life.conftest import TINY, Program, act, entries
from tests.life.test_train import last_weights

# Of a loss near 4.3; two runs in bfloat16 that differ by a rounding are as far apart.
BFLOAT16_TOLERANCE = 5e-3
# Ranks add the same float32 gradients in another order; context ranks attend in parts. A number
# that then rounds to the next one in float8 moves by 1/16: 1.4e-5 of a loss was seen.
LAYOUT_TOLERANCE = 1e-4
SAVED_STEP = 12
MICROBATCH = "parallelism.microbatch_sequences=4"
_OWN = ("budget.total_tokens=", MICROBATCH)
SHORT = (
    *(word for word in TINY if not word.startswith(_OWN)),
    *("precision=fp8", "budget.total_tokens=3_072"),
)


@pytest.fixture(scope="module")
def whole(home: Path) -> Path:
    run = home / "whole"
    assert act(home, *TINY, "precision=fp8", "checkpoint.keep=4", f"run={run}") == 0
    return run


def losses(run: Path, kind: str = "step") -> list[float]:
    return [entry["loss"] for entry in entries(run, kind)]


@pytest.mark.long
def test_its_loss_falls_as_in_bfloat16_by_other_numbers(
    whole: Path, home: Path, program: Program
) -> None:
    program(*TINY, "precision.compute=bfloat16", f"run={home / 'bfloat16'}")
    float8, bfloat16 = losses(whole, "held_out"), losses(home / "bfloat16", "held_out")
    assert float8[-1] < 0.7 * losses(whole)[0]
    assert float8 == pytest.approx(bfloat16, rel=BFLOAT16_TOLERANCE)
    assert float8 != bfloat16


@pytest.mark.long
def test_the_journal_says_that_it_is_emulated(whole: Path) -> None:
    (start,) = entries(whole, "start")
    assert start["evidence"]["float8"].startswith("emulated: a cpu rounds the numbers")


@pytest.mark.long
def test_it_goes_on_from_a_checkpoint_in_the_same_bits(whole: Path, program: Program) -> None:
    run = whole.with_name("resumed")
    shutil.copytree(whole, run)
    (run / "results.json").unlink()
    for folder in sorted((run / "checkpoints").iterdir())[2:]:
        shutil.rmtree(folder)
    program(f"resume={run}")
    assert [entry["step"] for entry in entries(run, "resume")] == [SAVED_STEP]
    expected, found = last_weights(whole), last_weights(run)
    assert expected.keys() == found.keys()
    assert all(expected[name].equal(found[name]) for name in expected)


@pytest.mark.long
def test_its_export_holds_the_weights_that_were_trained(
    whole: Path, home: Path, program: Program
) -> None:
    program("action=export", f"run={whole}", f"file={home / 'hf'}")
    exported = load_file(home / "hf" / "model.safetensors")
    trained = last_weights(whole)
    down = "layers.1.mlp.down.weight"
    assert trained[f"model.{down}"].equal(exported[f"model.{_of_llama(down)}"])
    assert not any(name for name in exported if "scale" in name)


def _of_llama(name: str) -> str:
    return name.replace("down.", "down_proj.")


@pytest.fixture(scope="module")
def short(home: Path) -> Path:
    """Six steps of one process."""
    run = home / "short"
    assert act(home, *SHORT, MICROBATCH, f"run={run}") == 0
    return run


@pytest.mark.long
@pytest.mark.parametrize(
    "layout",
    [
        ("data=2",),
        ("data=2", "zero=3", "recompute=full"),
        ("data=1", "context=2"),
        ("data=1", "pipeline=2"),
    ],
    ids=["data", "sharded", "context", "pipeline"],
)
def test_two_ranks_find_the_losses_of_one(
    short: Path, home: Path, program: Program, layout: tuple[str, ...]
) -> None:
    run = home / "-".join(layout).replace("=", "")
    words = [f"parallelism.{word}" for word in layout]
    program(*SHORT, MICROBATCH, *words, "cluster.ranks=2", f"run={run}")
    assert losses(run) == pytest.approx(losses(short), rel=LAYOUT_TOLERANCE)
