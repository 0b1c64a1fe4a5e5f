"""An environment runs from another folder, with nothing left of the one it was made in."""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.copies.venv import archive_venv, key_of
from components.errors import RecipeError

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
def test_python_and_scripts_import_from_where_they_were_unpacked(
    words: tuple[str, ...], venv: Path, tmp_path: Path
) -> None:
    copy = moved(venv, tmp_path / "node")
    command = [str(copy / "bin" / words[0]), *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    places = [Path(place) for place in done.stdout.split()]
    assert [place.name for place in places] == ["first.py", "other.py"]
    assert all(place.resolve().is_relative_to(copy) for place in places)


def test_what_is_no_script_is_the_same_bytes_at_the_same_moment(
    venv: Path, tmp_path: Path
) -> None:
    file = site_packages(venv) / "first.py"
    before = file.stat()
    copy = moved(venv, tmp_path / "node")
    after = (site_packages(copy) / "first.py").stat()
    # What was compiled of it holds on.
    assert (after.st_mtime, after.st_size) == (before.st_mtime, before.st_size)
    assert not list((copy / "bin").glob("[Aa]ctivate*"))


def test_a_link_out_of_the_environment_becomes_what_it_leads_to(
    venv: Path, tmp_path: Path
) -> None:
    cached = tmp_path / "cache" / "linked.py"
    cached.parent.mkdir()
    cached.write_text("VALUE = 3\n")
    (site_packages(venv) / "linked.py").symlink_to(cached)
    (site_packages(venv) / "again.py").symlink_to(site_packages(venv) / "first.py")
    copy = moved(venv, tmp_path / "node")
    cached.unlink()
    assert (site_packages(copy) / "linked.py").read_text() == "VALUE = 3\n"
    assert (site_packages(copy) / "again.py").readlink() == Path("first.py")


def test_an_archive_is_made_once_until_a_file_changes(venv: Path) -> None:
    first = archive_venv(venv)
    made = first.stat().st_mtime_ns
    (site_packages(venv) / "__pycache__").mkdir()
    (site_packages(venv) / "__pycache__" / "first.pyc").touch()
    assert (archive_venv(venv), first.stat().st_mtime_ns) == (first, made)
    (site_packages(venv) / "first.py").write_text("VALUE = 1\n")
    second = archive_venv(venv)
    assert second != first
    assert list(second.parent.iterdir()) == [second]


def test_a_touched_file_a_new_one_and_one_that_went_are_other_environments(venv: Path) -> None:
    file = site_packages(venv) / "first.py"
    keys = [key_of(venv)]
    os.utime(file, ns=(0, 1))
    keys.append(key_of(venv))
    file.rename(file.with_name("renamed.py"))
    keys.append(key_of(venv))
    (site_packages(venv) / "renamed.py").unlink()
    keys.append(key_of(venv))
    assert len(set(keys)) == 4


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
def test_what_ranks_would_still_read_elsewhere_is_refused(
    spoil: Callable[[Path], None], message: str, venv: Path
) -> None:
    spoil(venv)
    with pytest.raises(RecipeError, match=message):
        archive_venv(venv)
    assert not list((venv / "copies").glob("*"))


def test_without_room_the_message_names_the_archive(venv: Path) -> None:
    (venv / "copies").write_text("a file where a folder should be")
    with pytest.raises(RecipeError, match=r"venv-\w+\.tar: cannot be written: File exists"):
        archive_venv(venv)
