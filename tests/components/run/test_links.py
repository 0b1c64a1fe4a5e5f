"""Links of a run folder: inside they are its own, out of it they are refused."""

import contextlib
import os
import re
import socket
from pathlib import Path

import pytest

from components.errors import RecipeError
from components.run import folder
from components.run.ownership import FOLDERS, UNREAD, check_inside, check_links


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder beside somebody's file."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "victim").write_text("theirs")
    (tmp_path / "run" / "checkpoints" / "tokens-1").mkdir(parents=True)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("metrics.jsonl", "../outside/victim"),
        ("checkpoints/tokens-2", "../../outside"),
        ("checkpoints/tokens-1/progress.json", "/etc/passwd"),
        ("report.html", "../outside/not-there-yet"),
        ("jobs", "checkpoints/../../outside"),
        ("hop", "second"),
    ],
)
def test_a_link_to_the_outside_is_refused(run: Path, link: str, target: str) -> None:
    (run / "second").symlink_to("../outside")
    if link != "hop":
        (run / "second").unlink()
    (run / link).symlink_to(target)
    with pytest.raises(RecipeError, match="leads out of the run, to /") as caught:
        check_links(run, "resume")
    assert caught.value.path == "resume"
    assert str(run) in caught.value.problem
    assert "remove the link" in caught.value.remedy


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "results.json", ".results.json.7", "stop", "checkpoints/stop"]
)
def test_a_pipe_in_place_of_a_file_is_refused(run: Path, name: str) -> None:
    os.mkfifo(run / name)
    with pytest.raises(RecipeError, match=f"{name} is neither a file nor a folder"):
        check_links(run, "run")


@pytest.mark.parametrize("name", sorted(FOLDERS - UNREAD))
def test_every_folder_is_checked_to_its_depth(run: Path, name: str) -> None:
    (run / name / "deep" / "deeper").mkdir(parents=True)
    os.mkfifo(run / name / "deep" / "deeper" / "pipe")
    with pytest.raises(RecipeError, match="deeper/pipe is neither a file nor a folder"):
        check_links(run, "run")
    (run / name / "deep" / "deeper" / "pipe").unlink()
    (run / name / "deep" / "link").symlink_to("/etc")
    with pytest.raises(RecipeError, match="deep/link is a link that leads out"):
        check_links(run, "run")


@pytest.mark.parametrize("name", sorted(FOLDERS))
def test_a_folder_that_links_to_the_outside_is_refused(run: Path, name: str) -> None:
    if (run / name).exists():
        (run / name).rename(run / "before")
    (run / name).symlink_to("../outside")
    with pytest.raises(RecipeError, match=f"{name} is a link that leads out"):
        check_links(run, "run")


def test_all_documented_folders_and_hard_links_are_checked(run: Path, tmp_path: Path) -> None:
    described = re.findall(r"^(\w+)/ ", folder.__doc__ or "", re.MULTILINE)
    assert set(described) <= FOLDERS
    assert len(described) > 8
    (run / "metrics.jsonl").unlink(missing_ok=True)
    (tmp_path / "theirs").write_text("")
    (run / "metrics.jsonl").hardlink_to(tmp_path / "theirs")
    with pytest.raises(RecipeError, match=r"metrics\.jsonl is a hard link to another"):
        check_links(run, "resume")


@pytest.mark.parametrize("name", ["wandb", "children/branch/wandb", ".cache", "tmp"])
def test_links_of_other_programs_are_accepted(run: Path, name: str) -> None:
    place = run / name / "deep"
    place.mkdir(parents=True)
    (place / "debug-core.log").symlink_to("/nowhere/else")
    (place / "python").symlink_to("/etc/passwd")
    os.mkfifo(place / "pipe")
    for where in (place, run):
        listener = socket.socket(socket.AF_UNIX)
        with contextlib.chdir(where):  # the path of a socket is short
            listener.bind("agent.sock")
        listener.close()
    (run / ".nfs000012").write_text("")
    (run / "core.4711").write_text("")
    check_links(run, "run")


def test_links_within_the_run_and_to_the_run_are_accepted(run: Path) -> None:
    (run / "checkpoints" / "latest").symlink_to("tokens-1")
    (run / "absolute").symlink_to(run / "checkpoints")
    (run / "round").symlink_to("round")
    scratch = run.with_name("link")
    scratch.symlink_to(run)
    check_links(run, "run")
    check_links(scratch, "run")


def snapshot(cache: Path, name: str = "datasets--x--y") -> Path:
    """Make a snapshot as huggingface_hub does, with one file."""
    folder, blobs = cache / name / "snapshots" / "abc", cache / name / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "123").write_text("a text")
    (folder / "a.txt").symlink_to("../../blobs/123")
    return folder


@pytest.mark.parametrize("name", ["datasets--x--y", "models--y"])
def test_links_of_a_snapshot_to_its_blobs_are_accepted(tmp_path: Path, name: str) -> None:
    check_inside(snapshot(tmp_path, name), "data")


@pytest.mark.parametrize(
    "target",
    ["blobs/out", "blobs", "refs/main", "../models--other/blobs/1", "snapshots/other/b.txt"],
)
def test_other_links_of_a_snapshot_are_refused(tmp_path: Path, target: str) -> None:
    folder = snapshot(tmp_path / "cache")
    repository = folder.parent.parent
    (tmp_path / "secret").write_text("not yours")
    (repository / "blobs" / "out").symlink_to(tmp_path / "secret")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    (folder / "b.txt").symlink_to(repository / target)
    with pytest.raises(RecipeError, match=r"b\.txt is a link that leads out of the folder"):
        check_inside(folder, "data")


def test_blobs_behind_a_link_or_of_another_folder_are_refused(tmp_path: Path) -> None:
    folder = snapshot(tmp_path / "cache")
    blobs = folder.parent.parent / "blobs"
    blobs.rename(tmp_path / "elsewhere")
    blobs.symlink_to(tmp_path / "elsewhere")
    for one in (folder, snapshot(tmp_path / "other", "mine")):
        with pytest.raises(RecipeError, match=r"a\.txt is a link that leads out"):
            check_inside(one, "data")
    with pytest.raises(RecipeError, match=r"a\.txt is a link that leads out of the run"):
        check_inside(snapshot(tmp_path / "runs"), "run", "run")
