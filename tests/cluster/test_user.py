"""The user's side: read from a file and from the command line, refused where it is wrong."""

import os
from pathlib import Path
from typing import Any

import pytest

from cluster.user import User, missing_setting_error, read_user
from components.errors import RecipeError
from tests.cluster.programs import Patch


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True)
    file.write_text(text, "utf-8")


def test_each_cluster_has_its_section_and_the_command_line_wins(site_file: Path) -> None:
    assert read_user("juwels", {}) == User()
    write(site_file, "juwels: {account: mine, mail: me@x.org}\naurora: {venv: /a}\n")
    assert read_user("juwels", {}) == User(account="mine", mail="me@x.org")
    assert read_user("juwels", {"account": "third"}) == User(account="third", mail="me@x.org")
    assert read_user("aurora", {"image": "/b.sif"}) == User(image="/b.sif")
    assert read_user("hopper", {}) == User()


def test_file_is_below_the_home_folder(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / ".config/kochbuch/site.yaml", "juwels: {account: mine}\n")
    assert read_user("juwels", {}).account == "mine"
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    user = read_user("juwels", {"runs": "$SCRATCH/runs", "venv": "~/venv"})
    assert (user.runs, user.venv) == ("/scratch/me/runs", f"{tmp_path}/venv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("juwels: [account]", r"site.yaml: juwels: \['account'\] is not a mapping"),
        ("- juwels", r"site.yaml: \['juwels'\] is not a mapping"),
        ("juwels: {acount: x}", r"juwels\.acount: unknown key\n  did you mean account\?"),
        ("juwels: {account: 12}", r"juwels\.account: expected a string, got 12"),
        ("juwels: {venv: /a, image: /b}", "an image .* and a virtual environment"),
        ("juwels: {account: [", "cannot be read: while parsing"),
        ("[" * 2_000, "cannot be read: maximum recursion depth exceeded"),
        ("juwels: {device_hours: .nan}", "device_hours: expected a number of hours"),
        (None, "cannot be read: not a regular file"),  # a pipe holds nobody up
    ],
)
def test_wrong_file_is_refused(text: str | None, message: str, site_file: Path) -> None:
    if text is None:
        site_file.parent.mkdir(parents=True)
        os.mkfifo(site_file)
    else:
        write(site_file, text)
    with pytest.raises(RecipeError, match=message):
        read_user("juwels", {})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"acount": "x"}, r"site\.acount: unknown key\n  did you mean account\?"),
        ({"account": "a; rm -rf x"}, "is not allowed in a job script"),
        ({"account": "a\n#SBATCH --x"}, "is not allowed in a job script"),
        ({"runs": "$NOWHERE/runs"}, "is not allowed in a job script"),
        ({"venv": "~nobody_here/venv"}, "'~nobody_here/venv' is not allowed in a job script"),
        ({"runs": "runs"}, "'runs' is not an absolute path"),
        ({"venv": "/a", "image": "/b"}, r"site\.image: an image \(/b\) and"),
    ],
)
def test_wrong_words_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        read_user("juwels", words)


def test_missing_setting_is_named_with_its_file_and_line(site_file: Path) -> None:
    text = str(missing_setting_error("account", "juwels", "jobs are billed"))
    assert text.startswith("site.account: not set, and jobs are billed")
    assert f"{site_file}:\n    juwels:\n      account: ..." in text
    assert "site.account=..." in text
