"""A seal says whose recipe a run folder holds; where none can be made nothing fails."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from components.errors import RecipeError
from components.run.ownership import is_own, sign_file


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's state folder of this test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text('{"name": "walnut"}')
    return tmp_path / "run" / "recipe.json"


def test_a_signed_file_is_own_until_a_byte_changes(recipe: Path) -> None:
    assert not is_own(recipe)
    sign_file(recipe)
    assert is_own(recipe)
    recipe.write_text('{"name": "walnuts"}')
    assert not is_own(recipe)
    sign_file(recipe)
    assert is_own(recipe)
    sign_file(recipe)
    (recipe.parent / "recipe.json.mac").unlink()
    os.mkfifo(recipe.parent / "recipe.json.mac")
    assert not is_own(recipe)


def test_a_copy_is_own_and_a_file_of_another_user_is_not(recipe, tmp_path, monkeypatch):
    sign_file(recipe)
    moved = recipe.parent.rename(tmp_path / "elsewhere")
    assert is_own(moved / "recipe.json")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert not is_own(moved / "recipe.json")
    sign_file(moved / "recipe.json")
    assert is_own(moved / "recipe.json")


def test_the_key_is_made_once_for_this_user_alone(recipe: Path, home: Path) -> None:
    with ThreadPoolExecutor(8) as together:
        list(together.map(lambda _: sign_as_if_alone(recipe), range(32)))
    key = home / "kochbuch" / "key"
    assert len(key.read_bytes()) == 32
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert list(key.parent.iterdir()) == [key]
    before = key.read_bytes()
    sign_file(recipe)
    assert key.read_bytes() == before


def sign_as_if_alone(recipe: Path) -> None:
    """Each thread signs a file of its own; they share the key alone."""
    own = recipe.parent / f"{os.urandom(8).hex()}"
    own.mkdir()
    (own / "recipe.json").write_text("{}")
    sign_file(own / "recipe.json")
    assert is_own(own / "recipe.json")


def test_a_relative_state_folder_is_ignored(recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "state-here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    sign_file(recipe)
    assert (tmp_path / "home" / ".local" / "state" / "kochbuch" / "key").is_file()


def test_without_a_folder_for_the_key_there_is_no_seal(recipe: Path, home: Path) -> None:
    home.write_text("no folder")
    sign_file(recipe)
    assert not is_own(recipe)
    assert [file.name for file in recipe.parent.iterdir()] == ["recipe.json"]


@pytest.mark.parametrize("key", [b"", b"short"])
def test_a_key_of_another_length_seals_nothing(recipe: Path, home: Path, key: bytes) -> None:
    (home / "kochbuch").mkdir(parents=True)
    (home / "kochbuch" / "key").write_bytes(key)
    (home / "kochbuch" / "key").chmod(0o600)
    sign_file(recipe)
    assert not is_own(recipe)


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o644, 0o660])
def test_a_key_that_others_can_read_is_refused(recipe: Path, home: Path, mode: int) -> None:
    sign_file(recipe)
    key = home / "kochbuch" / "key"
    key.chmod(mode)
    for use in (sign_file, is_own):
        with pytest.raises(RecipeError, match="is a private key that another user") as told:
            use(recipe)
        assert told.value.path == str(key)
    key.chmod(0o600)
    assert is_own(recipe)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.getuid", lambda: 12_345)
        for use in (sign_file, is_own):
            with pytest.raises(RecipeError, match="is a private key that another user"):
                use(recipe)


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_the_key_is_private_under_any_umask(recipe: Path, home: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        sign_file(recipe)
    finally:
        os.umask(before)
    assert stat.S_IMODE((home / "kochbuch" / "key").stat().st_mode) == 0o600
    assert is_own(recipe)
