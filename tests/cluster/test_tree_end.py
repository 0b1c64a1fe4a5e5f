"""A job that ends while it submits what follows: nobody is left to guess what was taken.

The part of a real script that polls and ends runs here; sbatch takes its time.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from cluster import asking, script
from command.arguments import read_point
from command.compose import compose_tree
from command.tree.nodes import nodes_of, state_of
from command.tree.submission import submit_due
from components.config.schema.recipe import Recipe
from components.run.folder import create_run_folder
from components.run.provenance import write_provenance
from tests.cluster.programs import Programs
from tests.life.conftest import ROOT

TREE = (
    *("recipe=teuken7b", "scale=full", "cluster=juwels"),
    *("checkpoint.every_tokens=100_000_000_000", "children.given={export: {}}"),
)
# No /bin/sh, which may let signals through that who started it has put off.
SLOW = "#!/bin/bash\necho sbatch >> {folder}/called; sleep 2; echo 77\n"
# What the script does not have here: the ranks, and the records of its chain.
BEFORE = """cd {root}
run={trunk}
grow() {{ "$@" python -m command.tree.course "$run" &>> "$run/jobs/children.log"; }}
launch() {{ until [ -e {folder}/called ]; do sleep 0.1; done; {then}; }}
"""
PYTHON = '[ "$2" = cluster.end ] && exit "$4"\nexec {python} "$@"'


@cache
def composed() -> Recipe:
    return compose_tree(read_point(list(TREE)))[0]


@pytest.fixture
def trunk(tmp_path: Path) -> Path:
    """A trunk whose checkpoint, that an export waits for, is there."""
    trunk = create_run_folder(composed(), tmp_path / "trunk").path
    write_provenance(nodes_of(trunk)[0].parent, ["site.account=kitchen"])
    (trunk / "jobs").mkdir()
    saved = trunk / "checkpoints" / f"tokens-{nodes_of(trunk)[0].child.at_tokens:015d}"
    saved.mkdir()
    (saved / "progress.json").write_text("{}")
    return trunk


@pytest.fixture
def job(
    trunk: Path, tmp_path: Path, programs: Programs
) -> Callable[[str], "subprocess.Popen[bytes]"]:
    """Start the end of the trunk's job; ``then`` its ranks end."""
    programs.script("sbatch", "")
    (programs.folder / "sbatch").write_text(SLOW.format(folder=tmp_path))
    programs.script("python", PYTHON.format(python=sys.executable))

    def start(then: str) -> "subprocess.Popen[bytes]":
        job = SimpleNamespace(has_children=True, restarts=0, host_python="python")
        end = script.fill("launch.sh.j2", job).replace("sleep 60", "sleep 1")
        text = BEFORE.format(root=ROOT, trunk=trunk, folder=tmp_path, then=then)
        return subprocess.Popen(["bash", "-c", text + end], start_new_session=True)

    return start


def noted(trunk: Path) -> str | None:
    node = nodes_of(trunk)[0]
    return json.loads(node.note.read_text())["job"] if node.note.exists() else None


def test_a_submission_is_noted_before_the_job_ends(
    tmp_path: Path, job: Callable[[str], "subprocess.Popen[bytes]"]
) -> None:
    running = job("return 7")
    assert running.wait(600) == 7  # the ranks' own status
    with pytest.raises(ProcessLookupError):  # nothing is left for the scheduler to kill
        os.killpg(running.pid, signal.SIGKILL)
    assert noted(tmp_path / "trunk") == "77"
    assert (tmp_path / "called").read_text() == "sbatch\n"  # once
    assert state_of(nodes_of(tmp_path / "trunk")[0]) == "submitted"


def test_a_submission_is_noted_though_the_job_is_told_to_end(
    tmp_path: Path, job: Callable[[str], "subprocess.Popen[bytes]"]
) -> None:
    """As at a wall: SIGTERM to all that the job has, and SIGKILL after KillWait."""
    running = job("sleep 1000")
    end = time.monotonic() + 300
    while not (tmp_path / "called").exists() and time.monotonic() < end:
        time.sleep(0.1)
    os.killpg(running.pid, signal.SIGTERM)
    running.wait(300)
    while noted(tmp_path / "trunk") is None and time.monotonic() < end:
        time.sleep(0.1)
    assert noted(tmp_path / "trunk") == "77"


def test_what_the_scheduler_does_not_answer_to_is_left_to_a_person(
    trunk: Path,
    programs: Programs,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It may have taken the job: it is not handed over a second time by itself."""
    monkeypatch.setattr(asking, "ANSWERS_WITHIN_SECONDS", 0.5)
    programs.script("sbatch", "exec sleep 20")
    submit_due(trunk)
    assert "[given] not submitted: cluster.scheduler: sbatch: no ans" in capfd.readouterr().err
    assert state_of(nodes_of(trunk)[0]) == "unknown"
    submit_due(trunk)
    assert len(programs.calls()) == 1


def test_what_the_scheduler_refuses_is_tried_again(trunk: Path, programs: Programs) -> None:
    programs.add("sbatch", error="queue is full", status=1)
    submit_due(trunk)
    assert state_of(nodes_of(trunk)[0]) == "due"
    submit_due(trunk)
    assert len(programs.calls()) == 2
