"""A run goes on in another layout or engine: what is said, kept, refused, and found."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.resolve import update_recipe
from components.run.folder import RunFolder, create_run_folder, replace_recipe
from tests.life.conftest import Program, act, column, entries, forget_the_end, tiny

WORDS = tiny(
    "budget.total_tokens=3_072",
    "checkpoint.every_tokens=1_536",
    "evaluation.every_tokens=3_072",
    "evaluation.max_windows_per_source=4",
    "cluster.ranks=2",
)
SAVED_STEPS, STEPS = 3, 6
TOLERANCE = 1e-6  # relative: the order in which float32 numbers are added changes


@pytest.fixture(scope="module")
def stayed(home: Path) -> Path:
    """The run of two data ranks that was left alone."""
    assert act(home, *WORDS, f"run={home / 'stayed'}") == 0
    return home / "stayed"


@pytest.fixture
def killed(stayed: Path, tmp_path: Path) -> Path:
    """What a kill after the first checkpoint leaves of that run."""
    return forget_the_end(Path(shutil.copytree(stayed, tmp_path / "killed")))


def read(file: Path) -> Any:
    return json.loads(file.read_text())


@pytest.mark.long
def test_one_process_resumes_a_run_of_two_ranks(stayed, killed, program):
    program(f"resume={killed}", "parallelism.data=1", "checkpoint.keep=1")
    found, expected = entries(killed, "step")[STEPS:], entries(stayed, "step")[SAVED_STEPS:]
    for one, other in zip(found, expected, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=TOLERANCE)
        assert one["samples_digest"] == other["samples_digest"]

    before, after = read(stayed / "recipe.json"), read(killed / "recipe.json")
    assert read(killed / f"recipe-before-step-{SAVED_STEPS}.json") == before
    assert after["parallelism"]["data"] == after["cluster"]["ranks"] == 1
    assert {name for name in before if before[name] != after[name]} == {
        *("parallelism", "cluster", "checkpoint")
    }
    derived = read(killed / "derived.json")
    assert derived["ranks"] == 1
    assert derived["fingerprint"] == read(stayed / "derived.json")["fingerprint"]
    (resumed,) = entries(killed, "resume")
    assert resumed["step"] == SAVED_STEPS
    (changed,) = entries(killed, "changed_setting")
    assert changed["evidence"] == {
        "parallelism.data": [2, 1],
        "parallelism.data_shard": [2, 1],
        "checkpoint.keep": [2, 1],
        "cluster.devices_per_node": [2, 1],
        "cluster.ranks": [2, 1],
    }
    assert (killed / "report.html").is_file()


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("optimizer.lr=1e-4",), "it can change parallelism.*, cluster.*, checkpoint.*"),
        (("cluster=juwels",), "remove cluster, or start a new run with run=FOLDER"),
        (("cluster.nodes=2", "cluster.devices_per_node=1"), "is not 2 nodes of local"),
    ],
)
def test_a_refused_layout_leaves_the_folder_unchanged(killed, words, message, program):
    before = {file: file.read_bytes() for file in killed.glob("*.json")}
    assert message in program(f"resume={killed}", *words, status=2).stderr
    assert {file: file.read_bytes() for file in killed.glob("*.json")} == before


@pytest.mark.long
def test_a_damaged_checkpoint_is_refused_before_the_recipe_changes(killed, program):
    file = next((killed / "checkpoints").glob("*/*.safetensors"))
    file.write_bytes(file.read_bytes()[::-1])
    said = program(f"resume={killed}", "parallelism.data=1", status=2).stderr
    assert "was changed after it was written" in said
    assert not list(killed.glob("recipe-before*"))
    assert read(killed / "recipe.json")["parallelism"]["data"] == 2


def test_two_changes_at_one_step_keep_the_recipe_before_both(tmp_path: Path) -> None:
    two = compose_recipe(read_point(WORDS))
    folder = create_run_folder(two, tmp_path / "run")
    assert folder.changes_at(6) == {}
    replace_recipe(folder, update_recipe(two, {"parallelism.zero": 2}), step=6)
    assert folder.changes_at(6) == {"parallelism.zero": (1, 2)}
    four = update_recipe(two, {"parallelism.zero": 3, "checkpoint.keep": 4})
    replace_recipe(folder, four, step=6)
    assert folder.changes_at(6) == {"parallelism.zero": (1, 3), "checkpoint.keep": (2, 4)}
    assert folder.changes_at(7) == {}
    assert read(folder.recipe) == four.model_dump(mode="json")


def test_a_removed_key_is_a_change(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_json("recipe-before-step-6.json", {"kept": 1, "gone": {"key": 2}})
    folder.write_json("recipe.json", {"kept": 1, "new": 3})
    assert folder.changes_at(6) == {"gone.key": (2, None), "new": (None, 3)}


def forget_after(run: Path, step: int) -> None:
    """Let the run be as it was after ``step``."""
    (run / "results.json").unlink()
    for marker in (run / "checkpoints").glob("tokens-*/progress.json"):
        if json.loads(marker.read_text())["progress"]["step"] > step:
            marker.unlink()


@pytest.mark.long
def test_each_engine_resumes_a_run_of_the_other(home: Path, program: Program) -> None:
    run, steps = home / "deepspeed", 12
    words = ("parallelism.engine=deepspeed", "parallelism.zero=2", "checkpoint.keep=3")
    lengths = ("budget.total_tokens=6_144", "checkpoint.every_tokens=2_048")
    done = program(*tiny(*WORDS, *lengths, *words), f"run={run}")
    assert "eepSpeed" not in done.stdout
    uninterrupted, held_out = column(run, "loss"), column(run, "loss", "held_out")[-1]
    assert len(uninterrupted) == steps
    given = json.loads((run / "deepspeed.json").read_text())
    assert given["zero_optimization"]["stage"] == 2
    assert given["train_batch_size"] == 2 * given["train_micro_batch_size_per_gpu"]
    for engine, ranks, step in (("mesh", 1, 4), ("deepspeed", 2, 8)):
        forget_after(run, step)
        layout = (f"parallelism.engine={engine}", f"parallelism.data={ranks}")
        program(f"resume={run}", *layout, "parallelism.zero=1")
        left = steps - step
        assert column(run, "step", "resume")[-1] == step
        assert column(run, "loss")[-left:] == pytest.approx(uninterrupted[-left:], rel=1e-6)
        assert column(run, "loss", "held_out")[-1] == pytest.approx(held_out, rel=1e-6)
