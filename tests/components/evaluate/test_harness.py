"""What is refused before lm-eval sees anything; what it computes: tests/life/test_tasks.py."""

from pathlib import Path

import pytest

from components.errors import RecipeError
from components.evaluate import harness
from components.evaluate.harness import open_harness


def ask(folder: Path) -> None:
    with open_harness(folder, compute=None, most_rows=1):
        pass


def test_a_folder_that_is_no_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"file: .* has no config.json"):
        ask(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RecipeError, match=r"config.json: cannot be read: is not JSON"):
        ask(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_folder_that_names_code_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_text('{"auto_map": {"AutoConfig": "evil.Config"}}')
    with pytest.raises(RecipeError, match=f"{name}: auto_map lists Python files.*never run"):
        ask(tmp_path)


def test_without_lm_eval_the_message_says_how_to_get_it(monkeypatch) -> None:
    monkeypatch.setattr(harness, "PACKAGE", "lm_eval_that_nobody_has")
    with pytest.raises(RecipeError, match=r"not installed\n.*requirements/evaluate.lock"):
        harness.check_installed()
