"""What the loop cannot train is refused before anything is written; the rest passes."""

import json
import os
import resource
from pathlib import Path

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from command.outcome import Status, tell_error
from components.distributed import devices
from components.errors import RecipeError
from components.fault_tolerance.failures import FIRST_FAILURE, MENDABLE
from components.run.folder import RunFolder
from components.train.launch import check_trainable, how_it_ended, launch_training


@pytest.mark.parametrize(
    "words",
    [
        *("teuken7b cluster.ranks=8", "bloom176b cluster.ranks=8"),
        *("mula20b_a2b cluster.ranks=4", "mula220b_a10b cluster.ranks=8"),
        "teuken7b cluster.ranks=2 parallelism.context=2",
    ],
)
def test_every_axis_is_trainable(words: str) -> None:
    recipe, *keys = words.split()
    check_trainable(compose_recipe(read_point([f"recipe={recipe}", *keys])))


def test_another_cluster_than_this_machine_is_refused() -> None:
    recipe = compose_recipe(read_point(["recipe=teuken7b", "cluster=juwels"]))
    with pytest.raises(RecipeError, match=r"cluster: this machine is not 128 nodes of juwels"):
        check_trainable(recipe)


@pytest.mark.parametrize("error", ["MemoryError: ", "RuntimeError: CUDA out of memory."])
def test_an_out_of_memory_rank_has_the_message_of_one_process(error, tmp_path, capsys):
    folder = RunFolder(tmp_path)
    folder.recipe.touch()
    (tmp_path / "ranks").mkdir()
    failure = {"rank": 1, "message": error, "traceback": "Traceback (most recent call last):"}
    (tmp_path / "ranks" / FIRST_FAILURE).write_text(json.dumps(failure))
    with pytest.raises(MemoryError) as failed:
        how_it_ended(folder, 1)
    assert tell_error(failed.value, []) is Status.WRONG_INPUT
    message = capsys.readouterr().err
    assert f"rank 1 failed first\n  the ranks' logs are in {tmp_path}/ranks\n" in message
    assert f"this machine: no memory is left: {error.strip()}" in message
    assert "Traceback" not in message
    (tmp_path / "ranks" / FIRST_FAILURE).unlink()
    assert how_it_ended(folder, 1) == "failed"
    with pytest.raises(RecipeError, match="has no space left for the error that the first"):
        how_it_ended(folder, MENDABLE)


def test_ranks_are_not_started_with_too_few_file_descriptors(tmp_path: Path) -> None:
    recipe = compose_recipe(read_point(["recipe=teuken7b", "cluster.ranks=2"]))
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        with pytest.raises(RecipeError, match=r"2 ranks, .* per process is 100\n  .*ulimit"):
            launch_training(recipe, RunFolder(tmp_path), lock=0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    assert list(tmp_path.iterdir()) == []


def test_the_allocator_is_set_before_any_rank_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "")  # what there is comes back after the test
    monkeypatch.delenv("PYTORCH_ALLOC_CONF")
    monkeypatch.setattr(devices, "device_type", lambda wanted: "cuda")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100, 100))
    recipe = compose_recipe(read_point(["recipe=teuken7b", "cluster.ranks=2"]))
    with pytest.raises(RecipeError, match="open files per process is 100"):
        launch_training(recipe, RunFolder(tmp_path), lock=0)
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
