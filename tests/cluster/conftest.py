"""No user's own site.yaml reaches a test; a real Slurm is started once for all that need it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.records import Jobs
from components.run.folder import RunFolder
from tests.cluster.jobs import recipe_of
from tests.cluster.programs import Programs
from tests.cluster.slurm import JUWELS, LocalSlurm, local_slurm


@pytest.fixture(autouse=True)
def site_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the file would be that a test may write."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "kochbuch" / "site.yaml"


@pytest.fixture(scope="session")
def slurm() -> Iterator[LocalSlurm]:
    """Three nodes like those of JUWELS Booster."""
    with local_slurm(3, JUWELS) as cluster:
        yield cluster


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """A folder of programs that come first on the path; empty."""
    (tmp_path / "programs").mkdir()
    found = Programs(tmp_path / "programs")
    monkeypatch.setenv("PATH", found.path)
    return found


@pytest.fixture
def run_on(tmp_path: Path) -> Callable[..., Jobs]:
    """Make the folder of a run of Teuken-7B on a cluster, as submitting leaves it."""

    def make(cluster: str, *words: str) -> Jobs:
        folder = RunFolder(tmp_path / "run")
        for name in ("jobs", "ranks", "checkpoints"):
            (folder.path / name).mkdir(parents=True)
        folder.write_recipe(recipe_of("recipe=teuken7b", f"cluster={cluster}", *words))
        return Jobs(folder)

    return make
