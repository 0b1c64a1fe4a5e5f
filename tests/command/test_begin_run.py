"""Runs from Python: a folder that another process trains in stays as it is."""

from pathlib import Path

import pytest

from command.arguments import read_point
from command.begin_run import begin_run
from command.composition.compose import compose_recipe
from components.errors import RecipeError
from components.run.folder import create_run_folder
from components.run.writer_lock import train_alone

WORDS = ("recipe=teuken7b", "budget.total_tokens=16_384")


def test_run_in_training_keeps_results_and_stop(tmp_path: Path) -> None:
    folder = create_run_folder(compose_recipe(read_point([*WORDS])), tmp_path / "run")
    folder.write_json("results.json", {"status": "stopped"})
    folder.stop.touch()
    with train_alone(folder.path, "run"):
        with pytest.raises(RecipeError, match="is being trained by process"):
            begin_run(folder.path, *WORDS)
        assert folder.end_status == "stopped"
        assert folder.stop.exists()
    assert begin_run(folder.path, *WORDS) == folder.path
    assert folder.end_status is None
    assert not folder.stop.exists()
