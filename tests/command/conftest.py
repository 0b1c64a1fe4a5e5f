"""Places of a user: a clone, a private folder, and a working folder beside them."""

import shutil
from pathlib import Path

import pytest

from command.arguments import ROOT
from command.files import trusted_paths


@pytest.fixture
def clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A copy of the recipes and groups, for a user to add files to."""
    place = tmp_path / "clone"
    for folder in ("conf", "recipes"):
        shutil.copytree(ROOT / folder, place / folder)
    monkeypatch.setattr(trusted_paths, "CLONE", place)
    return place


@pytest.fixture
def private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A private folder with nothing in it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    place = tmp_path / "config" / "kochbuch"
    (place / "recipes").mkdir(parents=True)
    return place


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A working folder that is nobody's place."""
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A working folder, and beside it a private one that is not there."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path
