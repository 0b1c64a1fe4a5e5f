"""A node takes what was broadcast, or the archive itself, or says in one line why it cannot."""

import os
import subprocess
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from components.preflight.copies import failed_copies
from tests.cluster.jobs import ROOT

SCRIPT = ROOT / "cluster" / "copies" / "unpack.sh"
CONTENT = b"import this\n" * 1_000


def archive(file: Path, name: str) -> Path:
    """Write an archive that holds one file."""
    info = tarfile.TarInfo(name)
    info.size = len(CONTENT)
    with tarfile.open(file, "w") as tar:
        tar.addfile(info, BytesIO(CONTENT))
    return file


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder that lists two archives."""
    run = tmp_path / "run"
    (run / "copies").mkdir(parents=True)
    code = archive(run / "copies" / "code.tar", "code/a.py")
    venv = archive(tmp_path / "venv-1.tar", "venv/b.py")
    (run / "copies" / "archives").write_text(f"{code}\n{venv}\n")
    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "node").mkdir()
    return tmp_path / "node" / "kochbuch-7"


def unpack(run: Path, folder: Path) -> int:
    words = ["bash", str(SCRIPT), str(run), str(folder)]
    seen = os.environ | {"SLURMD_NODENAME": "node3.cluster"}
    return subprocess.run(words, env=seen, capture_output=True).returncode


def test_the_archives_are_read_where_nothing_was_broadcast(run: Path, folder: Path) -> None:
    assert unpack(run, folder) == 0
    for name in ("code/a.py", "venv/b.py"):
        assert (folder / name).read_bytes() == CONTENT
    assert list(folder.parent.iterdir()) == [folder]
    assert folder.stat().st_mode & 0o077 == 0  # nobody else's code is put there
    assert float((run / "copies" / "node3.seconds").read_text()) >= 0
    assert failed_copies(run) == {}


def test_a_whole_broadcast_is_taken_and_removed(run: Path, folder: Path) -> None:
    broadcast = Path(f"{folder}.code.tar")
    other = archive(broadcast, "code/b.py")  # of the same size
    assert unpack(run, folder) == 0
    assert not other.exists()
    assert (folder / "code" / "b.py").exists()
    assert not (folder / "code" / "a.py").exists()


def test_half_a_broadcast_is_passed_over(run: Path, folder: Path) -> None:
    archive(Path(f"{folder}.code.tar"), "code/b.py")
    os.truncate(f"{folder}.code.tar", 5_000)
    assert unpack(run, folder) == 0
    assert (folder / "code" / "a.py").read_bytes() == CONTENT


def test_an_interrupted_attempt_leaves_nothing_to_the_next(run: Path, folder: Path) -> None:
    for left in (folder, Path(f"{folder}.partial")):
        (left / "code").mkdir(parents=True)
        (left / "code" / "old.py").touch()
    assert unpack(run, folder) == 0
    assert [file.name for file in (folder / "code").iterdir()] == ["a.py"]
    assert list(folder.parent.iterdir()) == [folder]


def test_two_jobs_on_one_node_do_not_meet(run: Path, folder: Path) -> None:
    other = folder.with_name("kochbuch-77")
    broadcast = archive(Path(f"{other}.code.tar"), "code/a.py")
    assert unpack(run, folder) == 0
    assert broadcast.exists()
    assert unpack(run, other) == 0
    assert (folder / "code" / "a.py").exists()


def test_an_image_is_copied_as_it_is(run: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.sif").write_bytes(CONTENT)
    listed = f"{run}/copies/code.tar\n{tmp_path}/torch.sif\n"
    (run / "copies" / "archives").write_text(listed)
    assert unpack(run, folder) == 0
    assert (folder / "image").read_bytes() == CONTENT


def fill(run: Path, folder: Path) -> None:
    """Ask for more than any disk has, by a file with a hole."""
    with (run / "copies" / "code.tar").open("r+b") as file:
        file.truncate(2**43)


def lose(run: Path, folder: Path) -> None:
    (run / "copies" / "code.tar").unlink()


def damage(run: Path, folder: Path) -> None:
    (run / "copies" / "code.tar").write_bytes(b"no archive" * 1_000)


def occupy(run: Path, folder: Path) -> None:
    folder.parent.rmdir()
    folder.parent.touch()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (fill, "bytes are free, 8796093"),
        (lose, "No such file or directory"),
        (damage, "Exiting with failure status"),
        (occupy, "Not a directory"),
    ],
)
def test_a_node_that_cannot_says_why_in_a_line_and_keeps_nothing(
    spoil: Callable[[Path, Path], None], why: str, run: Path, folder: Path
) -> None:
    spoil(run, folder)
    assert unpack(run, folder) == 1
    ((node, said),) = failed_copies(run).items()
    assert node == "node3"
    assert why in said
    assert "\n" not in said
    assert not folder.exists()
    assert not Path(f"{folder}.partial").exists()
