"""No user's own site.yaml reaches a test; a real Slurm is started once for all that need it."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.slurm import LocalSlurm, what_lacks


@pytest.fixture(autouse=True)
def site_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the file would be that a test may write."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "kochbuch" / "site.yaml"


@pytest.fixture(scope="session")
def slurm() -> Iterator[LocalSlurm]:
    """Three nodes like those of JUWELS Booster; not skipped where a cluster must be had."""
    lack = what_lacks()
    if lack:
        assert "NEEDS_SLURM" not in os.environ, lack
        pytest.skip(lack)
    # Not below pytest's own folder: a socket's path has 107 bytes.
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as folder,
        LocalSlurm(folder=Path(folder), nodes=3, partition="booster") as cluster,
    ):
        yield cluster
