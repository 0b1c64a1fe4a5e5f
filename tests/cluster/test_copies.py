"""Copies for nodes: an environment moves, a job lists archives, a node unpacks them."""

import json
import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from cluster.copies.__main__ import list_archives
from cluster.copies.__main__ import main as copies_main
from cluster.copies.venv import archive_venv, key_of
from cluster.end import find_failure
from components.errors import RecipeError
from components.preflight.copies import failed_copies
from tests.cluster.jobs import ROOT

LONG = "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"
SAYS = "import first, other\nprint(first.__file__, other.__file__)\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment of this Python, with all that has to change when it moves."""
    venv = tmp_path_factory.mktemp("site") / "venv"
    command = [sys.executable, "-m", "venv", "--without-pip", str(venv)]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"})
    return venv


@pytest.fixture
def venv(made: Path, tmp_path: Path) -> Path:
    """The same for one test to spoil, in a folder of its own."""
    venv = tmp_path / "shared" / "venv"
    venv.parent.mkdir()
    subprocess.run(["cp", "-a", str(made), str(venv)], check=True)
    packages = site_packages(venv)
    (packages / "first.py").write_text("")
    (venv / "more").mkdir()
    (venv / "more" / "other.py").write_text("")
    (packages / "more.pth").write_text(f"{venv}/more\nimport os\n")
    python = venv / "bin" / "python"
    for name, head in (("short", f"#!{python}\n"), ("long", LONG.format(python=python))):
        (venv / "bin" / name).write_text(head + SAYS)
        (venv / "bin" / name).chmod(0o755)
    return venv


def site_packages(venv: Path) -> Path:
    (found,) = venv.glob("lib/python3.*/site-packages")
    return found


def moved(venv: Path, folder: Path) -> Path:
    """Unpack the environment elsewhere and take the one it was made from away."""
    with tarfile.open(archive_venv(venv)) as tar:
        tar.extractall(folder, filter="fully_trusted")
    venv.rename(venv.with_name("gone"))
    return folder / "venv"


@pytest.mark.parametrize("words", [("python", "-c", SAYS), ("short",), ("long",)])
def test_moved_python_imports_its_own(words, venv, tmp_path):
    copy = moved(venv, tmp_path / "node")
    command = [str(copy / "bin" / words[0]), *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    places = [Path(place) for place in done.stdout.split()]
    assert [place.name for place in places] == ["first.py", "other.py"]
    assert all(place.resolve().is_relative_to(copy) for place in places)


def test_other_files_keep_their_time_and_links_become_files(venv: Path, tmp_path: Path) -> None:
    file, cached = site_packages(venv) / "first.py", tmp_path / "cache.py"
    cached.write_text("VALUE = 3\n")
    (site_packages(venv) / "linked.py").symlink_to(cached)
    (site_packages(venv) / "again.py").symlink_to(file)
    before = file.stat()
    copy = moved(venv, tmp_path / "node")
    cached.unlink()
    after = (site_packages(copy) / "first.py").stat()
    # What was compiled of it holds on.
    assert (after.st_mtime, after.st_size) == (before.st_mtime, before.st_size)
    assert not list((copy / "bin").glob("[Aa]ctivate*"))
    assert (site_packages(copy) / "linked.py").read_text() == "VALUE = 3\n"
    assert (site_packages(copy) / "again.py").readlink() == Path("first.py")


def test_archive_is_made_once_until_a_file_changes(venv: Path) -> None:
    first = archive_venv(venv)
    made = first.stat().st_mtime_ns
    (site_packages(venv) / "__pycache__").mkdir()
    (site_packages(venv) / "__pycache__" / "first.pyc").touch()
    assert (archive_venv(venv), first.stat().st_mtime_ns) == (first, made)
    file = site_packages(venv) / "first.py"
    keys = [key_of(venv)]
    os.utime(file, ns=(0, 1))
    keys.append(key_of(venv))
    file.rename(file.with_name("renamed.py"))
    keys.append(key_of(venv))
    (site_packages(venv) / "renamed.py").unlink()
    keys.append(key_of(venv))
    assert len(set(keys)) == 4
    second = archive_venv(venv)
    assert second != first
    assert list(second.parent.iterdir()) == [second]


def spoil_link(venv: Path) -> None:
    (site_packages(venv) / "folder").symlink_to("/usr/share")


def spoil_place(venv: Path) -> None:
    (site_packages(venv) / "mine.pth").write_text("/usr/share\n")


def spoil_editable(venv: Path) -> None:
    record = site_packages(venv) / "mine-1.0.dist-info" / "direct_url.json"
    record.parent.mkdir()
    record.write_text(json.dumps({"url": "file:///x", "dir_info": {"editable": True}}))


def spoil_mark(venv: Path) -> None:
    (venv / "pyvenv.cfg").unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_link, r"in \S+ lib/\S+/folder is a link to /usr/share, so every rank"),
        (
            spoil_place,
            r"in \S+ mine\.pth adds /usr/share, so every rank would read outside it\n  install",
        ),
        (spoil_editable, r"in \S+ mine-1\.0 is installed in editable mode"),
        (spoil_mark, r"node_local, but \S+ has no pyvenv\.cfg.*\n  set site\.venv"),
    ],
)
def test_environment_with_files_elsewhere_is_refused(spoil, message, venv):
    spoil(venv)
    with pytest.raises(RecipeError, match=message):
        archive_venv(venv)
    assert not list((venv / "copies").glob("*"))


def test_archive_without_room_is_named(venv: Path) -> None:
    (venv / "copies").write_text("a file where a folder should be")
    with pytest.raises(RecipeError, match=r"venv-\w+\.tar: cannot be written: File exists"):
        archive_venv(venv)


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    (tmp_path / "run" / "ranks").mkdir(parents=True)
    return tmp_path / "run"


def test_code_of_a_node_reads_nothing_of_the_repository(listed: Path, tmp_path: Path) -> None:
    (listed / "copies").mkdir()
    (listed / "copies" / "node1.failed").write_text("no room")  # of the job before
    list_archives(listed, tmp_path / "image.sif", ROOT)
    left = {file.name for file in (listed / "copies").iterdir()}
    assert left == {"archives", "code.tar"}
    code, image = (listed / "copies" / "archives").read_text().splitlines()
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
    said = subprocess.check_output(command, cwd=ROOT, env=seen, text=True)
    count, files = said.split("\n", 1)
    assert int(count) > 10
    ours = [Path(file) for file in files.split() if "site-packages" not in file]
    assert not [file for file in ours if file.is_relative_to(ROOT / "components")]
    assert [file for file in ours if file.is_relative_to(tmp_path / "node" / "code")]


def test_failed_copy_of_an_environment_ends_jobs(listed, tmp_path, capsys):
    (tmp_path / "conda").mkdir()
    assert copies_main(listed, tmp_path / "conda") == 2
    assert "conda has no pyvenv.cfg" in capsys.readouterr().err
    ranks = listed / "ranks"
    failure = find_failure(ranks=ranks, log="", nodes=("node1",), per_node=1, status=2)
    assert failure.of_user
    assert "has no pyvenv.cfg, so it is not a virtual environment" in failure.why


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


def test_archives_are_read_where_nothing_was_broadcast(run: Path, folder: Path) -> None:
    assert unpack(run, folder) == 0
    for name in ("code/a.py", "venv/b.py"):
        assert (folder / name).read_bytes() == CONTENT
    assert list(folder.parent.iterdir()) == [folder]
    assert folder.stat().st_mode & 0o077 == 0  # nobody else's code is put there
    assert float((run / "copies" / "node3.seconds").read_text()) >= 0
    assert failed_copies(run) == {}


@pytest.mark.parametrize("whole", [True, False])
def test_only_a_whole_broadcast_is_taken(whole: bool, run: Path, folder: Path) -> None:
    broadcast = archive(Path(f"{folder}.code.tar"), "code/b.py")  # of the same size
    if not whole:
        os.truncate(broadcast, 5_000)
    assert unpack(run, folder) == 0
    assert not broadcast.exists()
    assert [file.name for file in (folder / "code").iterdir()] == ["b.py" if whole else "a.py"]


def test_interrupted_attempt_leaves_nothing_to_the_next(run: Path, folder: Path) -> None:
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


def test_image_is_copied_as_it_is(run: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.sif").write_bytes(CONTENT)
    listed = f"{run}/copies/code.tar\n{tmp_path}/torch.sif\n"
    (run / "copies" / "archives").write_text(listed)
    assert unpack(run, folder) == 0
    assert (folder / "image").read_bytes() == CONTENT


def occupy(code: Path, folder: Path) -> None:
    folder.parent.rmdir()
    folder.parent.touch()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        # More than any disk has, by a file with a hole.
        (lambda code, _: os.truncate(code, 2**43), "bytes are free, 8796093"),
        (lambda code, _: code.unlink(), "No such file or directory"),
        (lambda code, _: code.write_bytes(b"no archive" * 1_000), "Exiting with failure"),
        (occupy, "Not a directory"),
    ],
)
def test_node_that_cannot_says_why_and_keeps_nothing(spoil, why, run, folder):
    spoil(run / "copies" / "code.tar", folder)
    assert unpack(run, folder) == 1
    ((node, said),) = failed_copies(run).items()
    assert node == "node3"
    assert why in said
    assert "\n" not in said
    assert not folder.exists()
    assert not Path(f"{folder}.partial").exists()
