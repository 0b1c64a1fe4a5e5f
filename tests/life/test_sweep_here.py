"""A sweep on this machine: a folder, a table, a page; the same command goes on with it."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.life.conftest import Program, act, entries, tiny
from tests.life.test_interrupts import Running, started

STEPS, SAVED = 24, 6
WORDS = (
    "-m",
    *tiny(
        f"budget.total_tokens={STEPS * 512}",
        f"checkpoint.every_tokens={SAVED * 512}",
        f"evaluation.every_tokens={STEPS * 512}",
        "evaluation.max_windows_per_source=4",
    ),
)
LRS = "optimizer.lr=1e-3,2e-3,3e-3"
NAMES = ["optimizer.lr=0.001", "optimizer.lr=0.002", "optimizer.lr=0.003"]


@pytest.fixture(scope="module", autouse=True)
def prepared(home: Path) -> None:
    assert act(home, *WORDS[1:], "action=prepare") == 0


def states(folder: Path) -> list[str | None]:
    """How each run ended, nothing of one that has not."""
    files = [folder / name / "results.json" for name in NAMES]
    return [json.loads(one.read_text())["status"] if one.exists() else None for one in files]


def losses(run: Path) -> dict[int, float]:
    return {one["step"]: one["loss"] for one in entries(run, "step")}


@contextmanager
def sweeping(home: Path, folder: Path) -> Iterator[Running]:
    with started(home, *WORDS, LRS, f"run={folder}") as running:
        yield running


def test_a_repeated_sweep_skips_finished_points(home: Path, program: Program) -> None:
    words = tiny(
        *("budget.total_tokens=1024", "evaluation.every_tokens=1024"),
        *("checkpoint.every_tokens=1024", "evaluation.max_windows_per_source=1"),
        *("optimizer.beta1=0.9,0.8,1.5", "-m"),
    )
    first = program(*words, "output=json", status=2)
    (folder,) = (home / "runs").glob("teuken7b-sweep-*")
    assert "[optimizer.beta1=1.5] optimizer.beta1: " in first.stderr
    assert f"study: {folder}  (repeat the command to continue)" in first.stderr
    (script,) = folder.glob("plotly-*.min.js")  # once for the reports of all runs
    assert {one.name for one in folder.iterdir()} == {
        *("optimizer.beta1=0.9", "optimizer.beta1=0.8", script.name)
    }
    points = json.loads(first.stdout)["points"]
    assert [one["point"] for one in points] == [
        {"optimizer.beta1": beta} for beta in ("0.9", "0.8", "1.5")
    ]
    assert [one["columns"]["steps"] for one in points] == [2, 2, None]
    assert all(one["measured"] > 5 for one in points[:2])
    before = [(one, one.stat().st_mtime_ns) for one in sorted(folder.rglob("*/*"))]
    again = program(*words, "action=train", status=2)
    assert again.stderr.count("skipped: the run has finished") == 2
    assert [(one, one.stat().st_mtime_ns) for one in sorted(folder.rglob("*/*"))] == before
    assert re.search(r"^ *0.9 .* 2 +1,024 ", again.stdout, re.M)
    assert program("action=report", f"run={folder}", f"file={home / 'page.html'}")
    page = program(*words, "action=report", status=0).stdout.strip()
    assert page == str(folder / "sweep.html")
    assert "held_out.final over optimizer.beta1" in Path(page).read_text("utf-8")


def test_another_recipe_in_the_folder_of_a_point_is_refused(home, program):
    point = home / "mine" / "optimizer.beta1=0.9"
    point.mkdir(parents=True)
    (point / "recipe.json").write_text("{}")
    said = program(*WORDS, "optimizer.beta1=0.9,1.5", f"run={home / 'mine'}", status=2).stderr
    assert "[optimizer.beta1=0.9] " in said
    assert [one.name for one in point.iterdir()] == ["recipe.json"]


@pytest.fixture(scope="module")
def whole(home: Path, prepared: None) -> Path:
    assert act(home, *WORDS, LRS, f"run={home / 'whole'}") == 0
    assert states(home / "whole") == ["finished"] * 3
    return home / "whole"


def check_finished(home: Path, folder: Path, whole: Path) -> None:
    """Repeat the command, and compare with a sweep that nothing befell."""
    assert act(home, *WORDS, LRS, f"run={folder}") == 0
    assert states(folder) == ["finished"] * 3
    for name in NAMES:
        assert losses(folder / name) == losses(whole / name)


@pytest.mark.long
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_sweep_resumes_its_points(home, whole, kind):
    cut = home / f"cut-{kind.name}"
    second = cut / NAMES[1]
    with sweeping(home, cut) as running:
        running.wait_until(lambda: len(losses(second)) > 8 and entries(second, "checkpoint"))
        if kind == signal.SIGKILL:
            os.killpg(running.process.pid, kind)
        else:
            running.process.send_signal(kind)
        assert running.process.wait(600) == (3 if kind == signal.SIGINT else -kind)
    assert states(cut)[0] == "finished"
    assert not (cut / NAMES[2]).exists()
    finished = (cut / NAMES[0] / "results.json").stat().st_mtime_ns
    assert max(losses(second)) < STEPS
    check_finished(home, cut, whole)
    assert (cut / NAMES[0] / "results.json").stat().st_mtime_ns == finished
    resumed = [one for one in entries(second, "step") if one["step"] <= SAVED]
    assert len(resumed) == SAVED  # what a checkpoint held was not computed again


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0.1, 1.2])
def test_a_sweep_killed_early_is_completed_when_repeated(home, whole, seconds):
    folder = home / f"any-{seconds}"
    with sweeping(home, folder) as running:
        running.wait_until(lambda: (folder / NAMES[0]).exists())
        time.sleep(seconds)
        os.killpg(running.process.pid, signal.SIGKILL)
    check_finished(home, folder, whole)
