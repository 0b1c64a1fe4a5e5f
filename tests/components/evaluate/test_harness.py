"""Folders that are refused before lm-eval opens them; its results: tests/life/test_tasks.py."""

from pathlib import Path

import pytest

from components.errors import RecipeError
from components.evaluate import harness
from components.evaluate.harness import open_harness


def open_folder(folder: Path) -> None:
    with open_harness(folder, compute=None, most_rows=1):
        pass


def test_a_folder_without_a_valid_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"file: .* has no config.json"):
        open_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RecipeError, match=r"config.json: cannot be read: is not JSON"):
        open_folder(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_folder_that_names_code_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_text('{"auto_map": {"AutoConfig": "evil.Config"}}')
    with pytest.raises(RecipeError, match=f"{name}: auto_map lists Python files.*never run"):
        open_folder(tmp_path)


def test_the_error_without_lm_eval_names_its_requirements(monkeypatch) -> None:
    monkeypatch.setattr(harness, "PACKAGE", "lm_eval_that_nobody_has")
    with pytest.raises(RecipeError, match=r"not installed\n.*requirements/evaluate.lock"):
        harness.check_installed()
