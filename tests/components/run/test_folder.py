"""A run folder is made whole, or made again: what a kill left of one is no run."""

from pathlib import Path

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.run.folder import create_run_folder
from components.run.ownership import SEAL


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return compose_recipe(read_point(["recipe=teuken7b"]))


def test_a_folder_without_its_recipe_is_created_again(recipe: Recipe, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    for name in ("derived.json", ".derived.json.12", ".recipe.json.0bbf-0.partial"):
        (run / name).write_text('{"half')
    assert read_recipe(create_run_folder(recipe, run).recipe) == recipe


@pytest.mark.parametrize("name", ["notes.txt", "checkpoints/tokens-1", "recipe.json.bak"])
def test_a_folder_with_other_files_is_refused(recipe, name: str, tmp_path) -> None:
    file = tmp_path / "run" / name
    file.parent.mkdir(parents=True)
    file.touch()
    with pytest.raises(RecipeError, match="is not empty\n  set another run=FOLDER"):
        create_run_folder(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.json").exists()


@pytest.mark.parametrize("name", ["derived.json", "recipe.json", f"recipe.json{SEAL}"])
def test_an_interrupted_folder_is_created_again(recipe, tmp_path, monkeypatch, name):
    replace = Path.replace

    def interrupted(path: Path, target: Path) -> Path:
        if target.name == name:
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        create_run_folder(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.json").exists()
    monkeypatch.undo()
    assert read_recipe(create_run_folder(recipe, tmp_path / "run").recipe) == recipe


def test_a_working_folder_with_an_invalid_utf8_name_is_refused(recipe, tmp_path, monkeypatch):
    folder = tmp_path / "b\udcff"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(RecipeError, match="is not UTF-8 text"):
        create_run_folder(recipe, Path("run"))
    assert not list(folder.iterdir())
