"""A bundle made in one clone runs in another: the same losses; a changed byte is named."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.life.conftest import ROOT, column, environment, tiny

CLONED = (
    *("run.py", "command", "components", "cluster", "data_prep"),
    *("conf", "recipes", "corpora", "requirements"),
)
OWN = tiny(
    *("recipe=first", "data.shares={en: 0.5, de: 0.5}", "tokenizer.vocab_size=640"),
    *("budget.total_tokens=3_072", "checkpoint.every_tokens=3_072"),
    *("evaluation.every_tokens=3_072", "model.dropout=0.1"),
)
WORDS = [word for word in OWN if not word.startswith("data.sources=")]

NOBODY = 65534  # the user of no rights, on every Linux
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")


def clone_to(clone: Path) -> None:
    """Copy what a run needs of this repository."""
    clone.mkdir()
    for name in CLONED:
        place = ROOT / name
        if place.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(place, clone / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(place, clone / name)


@pytest.fixture(scope="module")
def bundle(home: Path) -> Path:
    """Train in a clone of this repository, pack the run, and remove the clone."""
    clone, file = home / "clone", home / "first.recipe.yaml"
    clone_to(clone)
    recipe = (ROOT / "recipes" / "teuken7b.yaml").read_text("utf-8")
    (clone / "recipes" / "first.yaml").write_text(
        recipe.replace("name: teuken7b", "name: first")
    )
    for words in ((*WORDS, "run=made"), ("action=pack", "run=made", f"file={file}")):
        subprocess.run(
            [sys.executable, "run.py", *words],
            cwd=clone,
            env=environment(),
            capture_output=True,
            check=True,
        )
    shutil.move(clone / "made", home / "made")
    shutil.rmtree(clone)
    return file


@pytest.fixture(scope="module")
def ran(bundle: Path) -> Path:
    return bundle.parent / "ran"


@pytest.mark.long
def test_another_clone_reproduces_the_losses_exactly(bundle, ran, home, program):
    done = program(f"recipe={bundle}", f"run={ran}")
    here = column(ran, "loss")
    assert len(here) == 6
    assert here == column(home / "made", "loss")
    verify = f"action=verify file={bundle} run={ran}"
    assert verify in done.stderr
    done = program(*verify.split())
    assert "\nsame mathematics, same layout, same machine\n" in done.stdout


@pytest.fixture
def elsewhere(bundle: Path) -> Iterator[Path]:
    """Give a folder to another user, with a clone and the bundle; pytest's are root's alone."""
    with TemporaryDirectory(prefix="elsewhere-") as name:
        place = Path(name)
        clone_to(place / "clone")
        shutil.copy(bundle, place)
        os.chown(place, NOBODY, NOBODY)
        yield place


def as_nobody(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Act as a user of no rights; the shell has none left when it starts the program."""
    return subprocess.run(
        [*AS_NOBODY, "sh", "-c", shlex.join(words)],
        cwd=folder,
        env=environment() | {"HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
@pytest.mark.skipif(  # only root can act as another user
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="only root can act as another user",
)
def test_another_user_reproduces_the_losses_exactly(bundle, home, elsewhere):
    if as_nobody(sys.executable, "-c", "import torch", folder=elsewhere).returncode:
        pytest.skip("other users cannot run this Python")
    assert "Permission denied" in as_nobody("ls", str(home), folder=elsewhere).stderr
    words = (f"recipe={bundle.name}", "run=ran")
    done = as_nobody(sys.executable, "clone/run.py", *words, folder=elsewhere)
    assert done.returncode == 0, done.stderr[-4000:]
    assert (elsewhere / "ran" / "results.json").stat().st_uid == NOBODY
    assert column(elsewhere / "ran", "loss") == column(home / "made", "loss")


@pytest.mark.long
def test_verify_lists_the_differences_of_a_run(bundle, home, program):
    program(f"recipe={bundle}", "optimizer.eps=1e-6", f"run={home / 'other'}")
    done = program(
        *("action=verify", "output=json", f"file={bundle}", f"run={home / 'other'}"), status=1
    )
    found = {one["key"] for one in json.loads(done.stdout)["differences"]["mathematics"]}
    assert {"optimizer.eps", "losses.sha256", "losses.last"} <= found


@pytest.mark.long
@pytest.mark.parametrize("name", ["de.train.tokens", "tokenizer.model"])
def test_a_changed_byte_of_the_data_is_named(name, bundle, ran, home, program):
    program("action=verify", f"file={bundle}")
    (file,) = (home / "prepared").glob(f"*/{name}")
    content = file.read_bytes()
    file.write_bytes(content[:70] + bytes([content[70] ^ 1]) + content[71:])
    done = program("action=verify", "output=json", f"file={bundle}", status=1)
    file.write_bytes(content)
    changed = json.loads(done.stdout)["differences"]["mathematics"]
    assert [one["key"] for one in changed] == [f"data: {name}"]
