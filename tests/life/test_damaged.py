"""A run whose newest checkpoint is damaged, and one that cannot save: what a user sees."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from components.checkpoint.faults import fill_up, truncate_newest
from components.checkpoint.marker import newest_checkpoint, tokens_of
from tests.life.conftest import TINY, Program, act, entries

CUT = ("budget.total_tokens", "checkpoint.every_tokens", "evaluation.every_tokens")
WORDS = (
    *(word for word in TINY if not word.startswith(CUT)),
    "budget.total_tokens=4_608",
    "checkpoint.every_tokens=1_536",
    "checkpoint.weights_every_tokens=4_608",
    "evaluation.every_tokens=4_608",
    "evaluation.max_windows_per_source=4",
)
STEPS, SAVED_STEPS = 9, 3
NO_LARGER_BYTES = 150_000  # than what is no checkpoint: these have 370,000


@pytest.fixture(scope="module")
def whole(home: Path) -> Path:
    run = home / "whole"
    assert act(home, *WORDS, f"run={run}") == 0
    return run


def weights(run: Path) -> dict[str, Any]:
    (folder,) = (run / "checkpoints").glob("weights-*")
    (file,) = folder.glob("*.safetensors")
    return load_file(file)


def test_a_run_goes_on_from_the_one_before_a_damaged_checkpoint_to_the_same_bits(
    whole: Path, tmp_path: Path, program: Program
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (run / "results.json").unlink()
    expected = weights(run)
    shutil.rmtree(next((run / "checkpoints").glob("weights-*")))
    truncate_newest(run / "checkpoints")
    said = program(f"resume={run}").stderr
    assert "going on from" in said
    (resume,), (damaged,) = entries(run, "resume"), entries(run, "damaged")
    assert resume["step"] == damaged["step"] == 2 * SAVED_STEPS
    assert "were written" in damaged["evidence"]["problem"]
    found = weights(run)
    assert found.keys() == expected.keys()
    assert all(tensor.equal(found[name]) for name, tensor in expected.items())
    assert (run / "checkpoints" / f"damaged-tokens-{4_608:015d}").is_dir()


def test_every_checkpoint_has_its_line_with_what_it_took(whole: Path) -> None:
    lines = entries(whole, "checkpoint")
    assert [line["step"] for line in lines] == [SAVED_STEPS, 2 * SAVED_STEPS, STEPS, STEPS]
    evidence = [line["evidence"] for line in lines]
    for line, one in zip(lines, evidence, strict=True):
        assert 0 <= one["waited_seconds"] <= line["seconds"] < one["seconds"]
        assert one["bytes"] > 0
    assert [Path(one["folder"]).name[:7] for one in evidence[-2:]] == ["tokens-", "weights"]
    assert all(Path(one["folder"]).is_dir() for one in evidence[1:])


def test_a_run_that_cannot_save_ends_with_one_message_and_goes_on_later(
    whole: Path, tmp_path: Path, program: Program
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (run / "results.json").unlink()
    newest = newest_checkpoint(run / "checkpoints")
    assert newest is not None
    shutil.rmtree(newest)
    with fill_up(NO_LARGER_BYTES):
        said = program(f"resume={run}", status=2).stderr
    assert "cannot be written: File too large" in said
    assert "then resume the run: the checkpoint before is whole" in said
    assert "Traceback" not in said
    left = newest_checkpoint(run / "checkpoints")
    assert left is not None
    assert tokens_of(left) == 3_072
    program(f"resume={run}")
    assert [entry["step"] for entry in entries(run, "resume")] == [2 * SAVED_STEPS] * 2


def test_a_run_whose_checkpoints_are_away_does_not_begin_anew(
    whole: Path, tmp_path: Path, program: Program
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (run / "results.json").unlink()
    (run / "checkpoints").rename(tmp_path / "away")
    said = program(f"resume={run}", "checkpoint.retry_seconds=0", status=2).stderr
    assert "cannot be written: No such file or directory" in said
    assert not (run / "checkpoints").exists()
