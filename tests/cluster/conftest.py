"""No user's own site.yaml reaches a test."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def site_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the file would be that a test may write."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "kochbuch" / "site.yaml"
