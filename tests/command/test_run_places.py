"""Places outside the working folder: honoured in a user's own run, named again in another's."""

import json
from pathlib import Path

import pytest

from command.arguments import read_point
from command.main import main
from command.recipe.path_checks import check_data_place, check_run_places
from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.run.folder import RunFolder, existing_run_folder
from components.run.ownership import sign_file
from tests.components.tracking.runs import START, STEPS, write_run

Said = pytest.CaptureFixture[str]

TEXT = "data.sources={eu: {files: ['/theirs/text/*.txt']}}"
WORDS = ("scale=mini", TEXT, "data.shares={eu: 1.0}", "data.folder=/theirs/prepared")
NAMED = ("data.folder=/theirs/prepared", "data.sources.eu.files=['/theirs/text/*.txt']")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of this user, of data that lie elsewhere."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    folder = write_run(Path("run"), [*START, *STEPS], *WORDS)
    noted = {"folder": "/theirs/prepared/walnut", "key": "k", "unigram": {"eu": 1.0}}
    (folder / "data.json").write_text(json.dumps(noted))
    command = {"command": ["python", "run.py", "recipe=teuken7b", *WORDS]}
    (folder / "environment.json").write_text(json.dumps(command))
    return folder


@pytest.fixture
def received(run: Path) -> Path:
    """The same run, as somebody would send it who has no key of this user's."""
    (run / "recipe.json.mac").write_text("0" * 64)
    return run


def opened(run: Path) -> tuple[RunFolder, Recipe]:
    folder = existing_run_folder(run)
    return folder, read_recipe(folder.recipe)


def test_paths_of_a_run_with_the_users_seal_are_used(run: Path) -> None:
    folder, recipe = opened(run)
    check_run_places(folder, recipe, read_point([]))
    check_data_place(folder, recipe, {})
    (run / "recipe.json.mac").unlink()
    with pytest.raises(RecipeError, match="was received"):
        check_run_places(*opened(run), read_point([]))


@pytest.mark.parametrize(
    ("named", "key"),
    [
        ((), r"data.sources.eu.files[0]"),
        (NAMED[1:], "data.folder"),
        (NAMED[:1], r"data.sources.eu.files[0]"),
    ],
)
def test_received_run_needs_places(received: Path, named: tuple[str, ...], key: str) -> None:
    folder, recipe = opened(received)
    with pytest.raises(RecipeError, match="run was received") as caught:
        check_run_places(folder, recipe, read_point(named))
    assert caught.value.path == key
    assert f"if you trust it, set {key.partition('[')[0]}=..." in caught.value.remedy
    check_run_places(folder, recipe, read_point(NAMED))


def test_resume_refuses_received_run(received: Path, capsys: Said) -> None:
    before = sorted(received.rglob("*"))
    assert main(["resume=run"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("data.sources.eu.files[0]: '/theirs/text/*.txt' leads out of")
    assert main(["resume=run", *NAMED[:1]]) == 2
    assert capsys.readouterr().err.startswith("data.sources.eu.files[0]: '/theirs/text/*.txt'")
    assert sorted(received.rglob("*")) == before
    assert main(["resume=run", *NAMED]) == 2
    assert "was received" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "asked", [("pack", "file=a.lock.yaml"), ("pack", "file=a.recipe.yaml"), ("preflight",)]
)
def test_data_elsewhere_need_name(received: Path, asked: tuple[str, ...], capsys: Said) -> None:
    action, *file = asked
    words = (f"action={action}", "run=run", *file)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("data.folder: '/theirs/prepared' leads out of the working directory")
    assert main([*words, NAMED[0]]) < 2
    assert main([*words, "data.folder=/elsewhere"]) == 2
    said = capsys.readouterr().err
    assert "run/data.json: /theirs/prepared/walnut is not inside data.folder" in said
    assert "if you trust it, set data.folder=/theirs/prepared" in said
    assert main(["action=diff", "a=run", "b=run"]) == 0
    assert "run: data not compared: '/theirs/prepared' leads" in capsys.readouterr().err


def test_data_behind_link_lie_elsewhere(run: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    Path("prepared").mkdir()
    Path("prepared/walnut").symlink_to(tmp_path / "outside")
    folder, recipe = opened(write_run(Path("other"), [*START], "scale=mini"))
    (folder.path / "recipe.json.mac").unlink()
    noted = {"folder": str(Path("prepared/walnut").absolute()), "key": "k"}
    (folder.path / "data.json").write_text(json.dumps(noted))
    with pytest.raises(RecipeError, match=r"is not inside data\.folder=prep"):
        check_data_place(folder, recipe, {})


def test_data_of_another_user_are_not_read_for_an_own_run(run: Path, capsys: Said) -> None:
    noted = json.loads((run / "data.json").read_text("utf-8"))
    (run / "data.json").write_text(json.dumps({**noted, "folder": "/others/data"}))
    folder, recipe = opened(run)
    with pytest.raises(RecipeError, match=r"/others/data is not inside data\.folder"):
        check_data_place(folder, recipe, {})
    sign_file(run / "data.json")
    check_data_place(folder, recipe, {})
    environment = {"command": ["python", "run.py", "action=show"]}
    (run / "environment.json").write_text(json.dumps(environment))
    assert main(["action=pack", "run=run", "file=a"]) == 2
    assert "environment.json: the recorded command has no recipe=" in capsys.readouterr().err
