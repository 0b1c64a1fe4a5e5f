"""Fixtures: no test reads the user's site.yaml, and all tests share one real Slurm."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.records import Jobs
from command.main import main
from components.run.folder import RunFolder
from tests.cluster.jobs import recipe_of, waiting_chain
from tests.cluster.programs import Programs
from tests.cluster.slurm import JUWELS, LocalSlurm, local_slurm
from tests.life.conftest import TINY

HERE = (
    *("cluster=juwels", "scale=mini", "cluster.device=cpu", "cluster.hardware=none"),
    *("cluster.nodes=2", "cluster.devices_per_node=1", "cluster.site.directives=[]"),
    *("cluster.site.modules=[]", "cluster.site.environment={}", "cluster.site.host_suffix=''"),
    *("cluster.site.binding.cores_per_rank=1", "cluster.hours=0.5", "site.account=kitchen"),
)
Submit = Callable[..., int]


@pytest.fixture(autouse=True)
def site_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The path of the user's site.yaml, which a test may write."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "kochbuch" / "site.yaml"


@pytest.fixture(scope="session")
def slurm() -> Iterator[LocalSlurm]:
    """Three nodes, set up as on JUWELS Booster."""
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


@pytest.fixture
def jobs(run_on: Callable[..., Jobs], programs: Programs) -> Jobs:
    """A submitted chain of four jobs on 128 nodes of JUWELS."""
    return waiting_chain(run_on, programs)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder shared by a file's tests, so that data is prepared once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def submit(home: Path, tmp_path: Path) -> Submit:
    """Submit a tiny run into ``tmp_path / "run"``."""

    def act(*words: str) -> int:
        with contextlib.chdir(home):
            own = {word.partition("=")[0] for word in words}
            usual = [word for word in (*TINY, *HERE) if word.partition("=")[0] not in own]
            return main([*usual, f"run={tmp_path / 'run'}", *words])

    return act


@pytest.fixture
def taking(programs: Programs) -> Programs:
    """A scheduler that accepts every script as job 77. Its queue is empty."""
    programs.add("sbatch", says="77\n")
    for name in ("squeue", "scancel", "scontrol"):
        programs.add(name)
    return programs
