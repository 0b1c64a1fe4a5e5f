"""What is asked of jobs that evaluate, and what is refused before any is submitted."""

from pathlib import Path

import pytest

from command.arguments import read_point
from command.evaluate.queue import EvaluationArray, _question, evaluate_in_jobs, read_array
from components.checkpoint.metadata import MARKER
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.run.folder import create_run_folder
from tests.cluster.jobs import recipe_of


@pytest.fixture
def recipe() -> Recipe:
    return recipe_of("recipe=teuken7b", "cluster=juwels")


def test_array_element_keeps_question(folder: Path) -> None:
    where = ("run=few", "checkpoints=all", "executor=array", "output=json", "site.account=a")
    asked = ("action=evaluate", "tasks=[choice]", "ranks=2", "precision.compute=float32")
    kept = _question(read_point([*where, *asked, "tasks_folder=mine"]))
    assert kept == [*asked, f"tasks_folder={folder}/mine"]


def test_a_written_record_is_read_and_another_file_refused(tmp_path: Path) -> None:
    assert read_array(tmp_path) is None
    array = EvaluationArray(groups=[[1_024, 3_072], [2_048]], words=["tasks=x"], job="77")
    array.save_array(tmp_path)
    assert read_array(tmp_path) == array
    (tmp_path / "array.json").write_text('{"groups": 3}')
    with pytest.raises(
        RecipeError, match=r"array\.json: .*\n.*the same command writes a new file"
    ):
        read_array(tmp_path)


@pytest.mark.parametrize(
    ("words", "kept", "message"),
    [
        (("checkpoints=all",), (), "run: .* has no complete checkpoint\n"),
        (("at_tokens=9",), (1, 2), "no checkpoint at 9 tokens .*\n  nearest checkpoints: 2"),
    ],
)
def test_a_missing_checkpoint_is_refused_before_submission(
    words: tuple[str, ...], kept: tuple[int, ...], message: str, recipe: Recipe, tmp_path: Path
) -> None:
    run = create_run_folder(recipe, tmp_path / "run")
    for tokens in kept:  # by name and marker: nothing of it is read here
        folder = run.checkpoints / f"tokens-{tokens:015}"
        folder.mkdir(parents=True)
        (folder / MARKER).touch()
    point = ("action=evaluate", "executor=array", f"run={run.path}", *words)
    with pytest.raises(RecipeError, match=message):
        evaluate_in_jobs(read_point(point))
