"""The commands of the pages for new users, run unchanged.

`make test` runs the short commands. `make long` runs the training commands, page by page, in a
copy of this tree. `STANDING` has replacements for commands that cannot run in a test, with
their reasons.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command.arguments import ROOT
from command.main import main

PAGES = ("README.md", "docs/start.md", "docs/first_model.md", "docs/adding.md")
OF_A_MINUTE = ("README.md", "docs/first_model.md")  # make pages has the others
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
PROGRAMS = ("python ", "make ", "source ")
ANSWERING = {"action=show", "action=plan", "action=render"}  # these answer within a second
SET_UP = "set-up fetches 2.3 GB from a network: that the target exists is what is tested"
SUBMITTED = "a test has no scheduler: what would be submitted is rendered"
SHORTER = "minutes of training: the same words with four steps"
FEW = "budget.total_tokens=16_384"
SWEEP, RATES = "python run.py -m recipe=teuken7b", "optimizer.lr=3e-4,1e-3,3e-3"
STANDING = {
    "make setup": ("make --dry-run setup", SET_UP),
    "make run": ("make --dry-run run", f"{SET_UP}; what it trains, the next page trains"),
    "make test": ("make --dry-run test", f"{SET_UP}; tests do not start all tests"),
    "python run.py recipe=teuken7b cluster=juwels": (
        "python run.py recipe=teuken7b cluster=juwels action=render",
        SUBMITTED,
    ),
    "python run.py recipe=teuken7b": (f"python run.py recipe=teuken7b {FEW}", SHORTER),
    "python run.py recipe=teuken7b optimizer.lr=1e-3 budget.total_tokens=163_840": (
        f"python run.py recipe=teuken7b optimizer.lr=1e-3 {FEW}",
        SHORTER,
    ),
    "python run.py recipe=bloom560m": (f"python run.py recipe=bloom560m {FEW}", SHORTER),
    "python run.py recipe=mine": (
        "python run.py recipe=mine action=show",
        "the next page trains such a recipe",
    ),
    f"{SWEEP} budget.total_tokens=163_840 {RATES} run=runs/rates": (
        f"{SWEEP} {FEW} {RATES} run=runs/rates",
        SHORTER,
    ),
}


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Yield the language and the text of each block of code."""
    yield from FENCE.findall((ROOT / page).read_text("utf-8"))


def commands(page: str) -> list[str]:
    """Return the lines that are commands, without shell comments."""
    lines = [line for kind, text in blocks(page) if not kind for line in text.splitlines()]
    return [re.sub(r"\s+#.*$", "", line).strip() for line in lines if line.startswith(PROGRAMS)]


def answers(line: str) -> bool:
    words = set(shlex.split(line))
    alone = line == "python run.py"
    return alone or (line.startswith("python run.py") and bool(words & ANSWERING))


def write_files(page: str, folder: Path) -> None:
    """Write the recipes of a page: blocks of YAML with a file name in their first line."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, text in blocks(page):
        if kind == "yaml" and (named := re.match(r"# (\w+\.yaml)\n", text)):
            (folder / named[1]).write_text(text, "utf-8")


def path_in_clone(text: str) -> str | None:
    """Return the path below the clone that the first line of a block names, if it does."""
    named = re.match(r"# (\w+/[\w/]+\.(?:yaml|py))\n", text)
    return named[1] if named else None


ALL = {(page, line): None for page in PAGES for line in commands(page)}
SHORT = [line for _, line in ALL if answers(line)]


def test_the_commands_are_found() -> None:
    assert all(len(commands(page)) >= 3 for page in PAGES)
    assert len(commands("docs/first_model.md")) == 5 + 1  # and the one with a tokenizer
    assert set(STANDING) <= {line for _, line in ALL}


@pytest.mark.parametrize("line", list(dict.fromkeys(SHORT)))
def test_a_fast_command_of_a_page_works(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for page in PAGES:
        write_files(page, tmp_path)
        write_files(page, tmp_path / "config" / "kochbuch" / "recipes")  # by name
    assert main(shlex.split(line)[2:]) == 0


def copy_tree(target: Path) -> None:
    """Copy the files that git tracks or would track. The packages are the test's own."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        if os.path.lexists(ROOT / name):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    programs = target / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (programs / "python").chmod(0o755)
    (programs / "activate").write_text("")


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if page in OF_A_MINUTE else pytest.mark.apart)
        for page in PAGES
    ],
)
def test_every_command_of_a_page_does_what_it_says(page: str, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    copy_tree(clone)
    write_files(page, clone)
    write_files(page, clone / "recipes")
    places = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "HF_HUB_OFFLINE": "1"}
    path = f"{clone / '.venv' / 'bin'}:{os.environ['PATH']}"
    environment = os.environ | places | {"PATH": path}

    def run(line: str) -> None:
        done = subprocess.run(
            ["bash", "-ec", line], cwd=clone, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"

    run(texts_at_hand())
    for kind, text in blocks(page):
        if file := path_in_clone(text):
            (clone / file).write_text(text, "utf-8")
        elif kind == "python":
            (clone / "shown.py").write_text(text, "utf-8")
            run("python shown.py")
    for line in commands(page):
        run(STANDING.get(line, (line, ""))[0])
    if page == "docs/first_model.md":
        assert (clone / "runs" / "mine" / "report.html").is_file()
        assert (clone / "mine_hf" / "model.safetensors").is_file()


def texts_at_hand() -> str:
    """Return the command that makes ten text files, which the page names for who has none."""
    found = re.search(r"`(mkdir texts; [^`]*)`", (ROOT / "docs/first_model.md").read_text())
    assert found is not None
    return found[1]
