"""A run whose losses are no numbers: what it keeps, and what an evaluation says of it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from command.outcome import Status
from components.checkpoint.metadata import list_saved_tokens
from components.run.history import read_history
from tests.life.conftest import act, entries, tiny

WORDS = tiny(
    *("evaluation.every_tokens=512", "checkpoint.every_tokens=512"),
    *("budget.total_tokens=2_048", "checkpoint.keep=1", "checkpoint.keep_best=1"),
    *("guard=none", "guard.inject=[{fault: nan, rank: 0, step: 3}]"),
)


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


@pytest.fixture(scope="module")
def diverged(home: Path) -> Path:
    """Two good steps, then weights that are no numbers."""
    run = home / "diverged"
    assert act(home, *WORDS, f"run={run}") == Status.DOES_NOT_HOLD
    return run


def test_the_best_checkpoint_is_kept_when_later_losses_are_nan(diverged: Path) -> None:
    losses = {one["tokens"]: one["loss"] for one in entries(diverged, "held_out")}
    assert [math.isfinite(loss) for loss in losses.values()] == [True, True, True, False, False]
    best = min((512, 1_024), key=losses.__getitem__)
    assert list_saved_tokens(diverged / "checkpoints") == [best, 2_048]


def test_every_json_file_of_a_diverged_run_is_valid_json(diverged: Path) -> None:
    whole = [*diverged.rglob("*.json")]
    lines = [
        line for file in diverged.rglob("*.jsonl") for line in file.read_text().splitlines()
    ]
    assert len(whole) > 5
    assert any('"loss": null' in line for line in lines)
    for text in (*(file.read_text() for file in whole), *lines):
        json.loads(text, parse_constant=refuse)


def test_nan_in_files_of_an_earlier_version_is_read_as_null(diverged, tmp_path):
    lines = (diverged / "metrics.jsonl").read_text().splitlines(keepends=True)
    text = "".join(line.replace(": null", ": NaN") for line in lines if "joules" not in line)
    (tmp_path / "metrics.jsonl").write_text(text)
    before, after = (
        [step.loss for step in read_history(folder).steps] for folder in (tmp_path, diverged)
    )
    assert [math.isfinite(loss) for loss in after] == [True, True, False, False]
    assert [*map(str, before)] == [*map(str, after)]


def test_an_evaluation_with_nan_is_valid_json(diverged, program, tmp_path):
    done = program("action=evaluate", "output=json", f"run={diverged}")
    tree = json.loads(done.stdout, parse_constant=refuse)
    held_out = tree["held_out"]
    assert held_out["all"]["loss"] is held_out["all"]["perplexity"] is None
    assert held_out["all"]["tokens"] > 0
    assert {"all.loss", "by_source.eu.bits_per_byte"} <= {*held_out["not_finite"]}
    assert "are not finite and saved as null, first: held_out.by_source.eu" in done.stderr
    (file,) = (diverged / "evaluation").glob("*.json")
    assert json.loads(file.read_text(), parse_constant=refuse) == tree
    text = tmp_path / "own.txt"
    text.write_text("Ein Pfund Mehl, zwei Eier und ein halber Liter Milch.\n")
    own = program("action=evaluate", "output=json", f"run={diverged}", f"text={text}")
    answer = json.loads(own.stdout, parse_constant=refuse)["texts"][str(text)]
    assert answer["loss"] is None
    assert answer["not_finite"] == ["loss", "perplexity", "bits_per_byte"]
    shown = program("action=evaluate", f"run={diverged}")
    assert "held-out loss \u2014, weighted as the mixture" in shown.stdout
    assert "eu" in (diverged / "report.html").read_text()


def test_the_checkpoint_before_the_divergence_is_evaluated(diverged, program):
    (first, _) = list_saved_tokens(diverged / "checkpoints")
    done = program("action=evaluate", "output=json", f"run={diverged}", f"at_tokens={first}")
    held_out = json.loads(done.stdout)["held_out"]
    assert held_out["not_finite"] == []
    assert math.isfinite(held_out["all"]["loss"])
