"""Files that an earlier version wrote are read, resumed and verified.

`tests/data/earlier_files` was written by commit 76e67cab: a user's recipe, its prepared data, a
run that was killed after step 9 of 12, and lock, bundle and losses of a run without the kill.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.life.conftest import ROOT, Program, entries

EARLIER = ROOT / "tests" / "data" / "earlier_files"
FINGERPRINT = json.loads((EARLIER / "run" / "derived.json").read_text())["fingerprint"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EARLIER, tmp_path / "home"))


def read_losses(home: Path) -> dict[int, float]:
    written = json.loads((home / "losses.json").read_text())
    return {int(step): loss for step, loss in written.items()}


def show(program: Program, *words: str) -> Any:
    return json.loads(program("action=show", "output=json", *words).stdout)


def test_an_earlier_run_resumes_with_the_losses_of_the_whole_run(home, program):
    done = program("resume=run", "data.folder=data")
    assert "tokenizer: training" not in done.stderr  # the prepared data is used
    resumed = {entry["step"]: entry["loss"] for entry in entries(home / "run", "step")}
    assert resumed == pytest.approx(read_losses(home), rel=1e-5)
    assert [entry["step"] for entry in entries(home / "run", "resume")] == [8]


@pytest.mark.parametrize("file", ["small.yaml", "small.recipe.yaml"])
def test_an_earlier_recipe_and_bundle_keep_their_fingerprint(home, program, file):
    assert show(program, f"recipe=./{file}")["fingerprint"] == FINGERPRINT


@pytest.mark.parametrize("file", ["small.lock.yaml", "small.recipe.yaml"])
def test_an_earlier_lock_and_bundle_verify_an_earlier_run(home, program, file):
    words = ("action=verify", f"file={file}", "run=run", "data.folder=data", "output=json")
    verdict = json.loads(program(*words, status=1).stdout)
    differing = verdict["differences"]
    assert {entry["key"] for entry in differing["mathematics"]} == {
        *("losses.steps", "losses.last", "losses.sha256")  # the run ended after step 9
    }
    assert differing["layout"] == differing["machine"] == differing["record"] == []


def test_an_earlier_bundle_trains_with_the_same_losses(home: Path, program: Program) -> None:
    program("recipe=./small.recipe.yaml", "run=again")
    again = {entry["step"]: entry["loss"] for entry in entries(home / "again", "step")}
    assert again == pytest.approx(read_losses(home), rel=1e-5)
