"""A job lists what its nodes copy; an error of that ends the chain as a rank's would."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from cluster.copies.__main__ import list_archives, main
from cluster.end import find_failure
from tests.cluster.jobs import ROOT


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run" / "ranks").mkdir(parents=True)
    return tmp_path / "run"


def test_the_code_of_a_node_reads_nothing_of_the_repository(run: Path, tmp_path: Path) -> None:
    list_archives(run, tmp_path / "image.sif", ROOT)
    code, image = (run / "copies" / "archives").read_text().splitlines()
    assert image == f"{tmp_path}/image.sif"
    with tarfile.open(code) as tar:
        tar.extractall(tmp_path / "node", filter="data")
    asked = (
        "import sys\n"
        "from components.preflight.node_checks import expected_versions\n"
        "from components.run.folder import RunFolder\n"
        "from pathlib import Path\n"
        "print(len(expected_versions(RunFolder(Path('/')), ['run'])[0]))\n"
        "print(*{m.__file__ for m in list(sys.modules.values()) if getattr(m, '__file__', 0)})"
    )
    seen = os.environ | {"PYTHONPATH": str(tmp_path / "node" / "code"), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", asked]
    done = subprocess.run(command, cwd=ROOT, env=seen, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    count, files = done.stdout.split("\n", 1)
    assert int(count) > 10
    ours = [file for file in files.split() if "site-packages" not in file]
    assert not [file for file in ours if Path(file).is_relative_to(ROOT / "components")]
    assert [file for file in ours if Path(file).is_relative_to(tmp_path / "node" / "code")]


def test_what_a_job_before_left_is_gone(run: Path, tmp_path: Path) -> None:
    (run / "copies").mkdir()
    (run / "copies" / "node1.failed").write_text("no room")
    list_archives(run, tmp_path / "image.sif", ROOT)
    assert sorted(file.name for file in (run / "copies").iterdir()) == ["archives", "code.tar"]


def test_an_environment_that_cannot_be_copied_ends_the_chain(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "conda").mkdir()
    assert main(run, tmp_path / "conda") == 2
    assert "conda has no pyvenv.cfg" in capsys.readouterr().err
    failure = find_failure(ranks=run / "ranks", log="", nodes=("node1",), per_node=1, status=2)
    assert failure.of_user
    assert "has no pyvenv.cfg, so it is not a virtual environment" in failure.why
