"""Links of a run folder: inside they are its own, out of it they are refused."""

import os
from pathlib import Path

import pytest

from components.errors import RecipeError
from components.run.ownership import check_links


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
def test_a_link_that_leads_out_is_refused_with_its_target(
    run: Path, link: str, target: str
) -> None:
    (run / "second").symlink_to("../outside")
    if link != "hop":
        (run / "second").unlink()
    (run / link).symlink_to(target)
    with pytest.raises(
        RecipeError, match=r"is a link that leads out of the run, to /"
    ) as caught:
        check_links(run, "resume")
    assert caught.value.path == "resume"
    assert str(run) in caught.value.problem
    assert "remove the link" in caught.value.remedy


def test_what_is_neither_a_file_nor_a_folder_is_refused(run: Path) -> None:
    os.mkfifo(run / "checkpoints" / "stop")
    with pytest.raises(RecipeError, match=r"checkpoints/stop is neither a file nor a folder"):
        check_links(run, "run")


def test_links_that_stay_inside_and_one_that_leads_to_the_run_are_fine(run: Path) -> None:
    (run / "checkpoints" / "latest").symlink_to("tokens-1")
    (run / "absolute").symlink_to(run / "checkpoints")
    (run / "round").symlink_to("round")
    scratch = run.with_name("link")
    scratch.symlink_to(run)
    check_links(run, "run")
    check_links(scratch, "run")


def test_a_file_to_append_to_has_one_name(run: Path, tmp_path: Path) -> None:
    (run / "metrics.jsonl").unlink(missing_ok=True)
    (tmp_path / "theirs").write_text("")
    (run / "metrics.jsonl").hardlink_to(tmp_path / "theirs")
    with pytest.raises(RecipeError, match=r"metrics\.jsonl is the file of another name, too"):
        check_links(run, "resume")
