"""A job that ends while it submits child runs: the record shows what was submitted.

The polling and the end of a real script run here, with a slow sbatch.
"""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from cluster import scheduler_command, script
from cluster.chain import CancelledEvent
from cluster.records import Jobs, utc_now
from command.arguments import read_point
from command.composition.compose import compose_recipe, compose_run
from command.main import main
from command.run_tree.nodes import nodes_of, state_of
from command.tree import submission
from command.tree.course import main as main_of_tree
from command.tree.submission import submit_due
from components.config.recipe import Recipe
from components.run.folder import RunFolder, create_run_folder
from components.run.ownership import seal_of
from components.run.provenance import write_provenance
from components.run.writer_lock import submission_lock
from tests.cluster.jobs import submitted
from tests.cluster.programs import Capture, Patch, Programs, queued
from tests.life.conftest import ROOT

TREE = (
    *("recipe=teuken7b", "scale=full", "cluster=juwels"),
    *("checkpoint.every_tokens=100_000_000_000", "children.given={export: {}}"),
)
# Not /bin/sh, which may pass on signals that its parent has blocked.
SLOW = "#!/bin/bash\necho sbatch >> {folder}/called; sleep 1; echo 77\n"
# Replaces the ranks, and the records of the chain.
BEFORE = """cd {root}
run={trunk}
grow() {{ "$@" python -m command.tree.course "$run" &>> "$run/jobs/children.log"; }}
launch() {{ until [ -e {folder}/called ]; do sleep 0.1; done; {then}; }}
"""
PYTHON = '[ "$2" = cluster.end ] && exit "$4"\nexec {python} "$@"'


@cache
def composed() -> Recipe:
    return compose_recipe(read_point(list(TREE)))


def trunk_with_checkpoint(recipe: Recipe, tmp_path: Path) -> Path:
    """Make a trunk with the checkpoint that its child waits for."""
    trunk = create_run_folder(recipe, tmp_path / "trunk").path
    write_provenance(RunFolder(trunk), ["site.account=kitchen"])
    (trunk / "jobs").mkdir()
    saved = trunk / "checkpoints" / f"tokens-{nodes_of(trunk)[0].child.at_tokens:015d}"
    saved.mkdir()
    (saved / "progress.json").write_text("{}")
    return trunk


@pytest.fixture
def trunk(tmp_path: Path) -> Path:
    return trunk_with_checkpoint(composed(), tmp_path)


Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def job(trunk: Path, tmp_path: Path, programs: Programs) -> Start:
    """Start the end of the trunk's job; ``then`` its ranks end."""
    programs.script("sbatch", "")
    (programs.folder / "sbatch").write_text(SLOW.format(folder=tmp_path))
    programs.script("python", PYTHON.format(python=sys.executable))

    def start(then: str) -> "subprocess.Popen[bytes]":
        recipe = SimpleNamespace(children=True, watchdog=SimpleNamespace(restarts=0))
        job = SimpleNamespace(recipe=recipe, host_python="python")
        end = script.fill_template("launch.sh.j2", job).replace("sleep 60", "sleep 0.3")
        text = BEFORE.format(root=ROOT, trunk=trunk, folder=tmp_path, then=then)
        return subprocess.Popen(["bash", "-c", text + end], start_new_session=True)

    return start


def recorded_job(trunk: Path) -> str | None:
    node = nodes_of(trunk)[0]
    return json.loads(node.job_file.read_text())["job"] if node.job_file.exists() else None


def test_submission_is_recorded_before_the_job_ends(trunk: Path, job: Start) -> None:
    running = job("return 7")
    assert running.wait(600) == 7  # the ranks' own status
    with pytest.raises(ProcessLookupError):  # no process is left
        os.killpg(running.pid, signal.SIGKILL)
    assert recorded_job(trunk) == "77"
    assert (trunk.parent / "called").read_text() == "sbatch\n"  # once
    assert state_of(nodes_of(trunk)[0]) == "submitted"


def test_submission_is_recorded_after_sigterm(trunk: Path, job: Start) -> None:
    """As at a wall: SIGTERM to all that the job has, and SIGKILL after KillWait."""
    running = job("sleep 1000")
    end = time.monotonic() + 300
    while not (trunk.parent / "called").exists() and time.monotonic() < end:
        time.sleep(0.1)
    os.killpg(running.pid, signal.SIGTERM)
    running.wait(300)
    while recorded_job(trunk) is None and time.monotonic() < end:
        time.sleep(0.1)
    assert recorded_job(trunk) == "77"


def test_refused_submission_is_tried_again_and_one_without_an_answer_is_not(
    trunk: Path, programs: Programs, monkeypatch: Patch, capfd: Capture
) -> None:
    programs.add("sbatch", error="queue is full", status=1)
    submit_due(trunk)
    assert state_of(nodes_of(trunk)[0]) == "due"
    monkeypatch.setattr(scheduler_command, "ANSWERS_WITHIN_SECONDS", 0.5)
    programs.script("sbatch", "exec sleep 20")  # it may have taken the job
    submit_due(trunk)
    assert "[given] not submitted: cluster.scheduler: sbatch: no ans" in capfd.readouterr().err
    assert state_of(nodes_of(trunk)[0]) == "unknown"
    submit_due(trunk)
    assert len(programs.calls()) == 2


def test_lost_job_waits_for_a_person(trunk: Path, programs: Programs, capfd: Capture) -> None:
    def states() -> tuple[str, str]:
        capfd.readouterr()
        assert main(["action=status", f"run={trunk}", "output=json"]) == 0
        return state_of(node), json.loads(capfd.readouterr().out)["children"]["given"]["state"]

    (node,) = nodes_of(trunk)
    logs, words = trunk / "children" / "jobs" / "given", read_point([f"resume={trunk}"])
    programs.add("sbatch", says="77\n")
    programs.add("squeue", says=queued(logs, "77_0|PENDING|Priority|"))
    submit_due(trunk)
    submit_due(trunk, reopened_by=words)
    assert states() == ("submitted", "submitted")
    programs.add("squeue")
    submit_due(trunk)
    assert states() == ("submitted", "lost")
    assert sum(call.startswith("sbatch") for call in programs.calls()) == 1
    programs.add("sbatch", says="78\n")
    submit_due(trunk, reopened_by=words)
    assert recorded_job(trunk) == "78"
    node.job_file.write_text('{"job": null}')  # the command was killed before the answer came
    assert states() == ("unknown", "unknown")
    programs.add("squeue", says=queued(logs, "78_0|PENDING|Priority|"))
    assert states() == ("unknown", "submitted")
    submit_due(trunk, reopened_by=words)
    assert sum(call.startswith("sbatch") for call in programs.calls()) == 2


def test_cancelled_tree_submits_nothing(trunk: Path, programs: Programs) -> None:
    """A job submits while a person cancels; that person waits for it."""
    programs.add("sbatch", says="77\n")
    Jobs(RunFolder(trunk)).append_events(CancelledEvent(at=utc_now()))
    submit_due(trunk)
    assert programs.calls() == []
    submit_due(trunk, reopened_by=read_point([f"resume={trunk}"]))
    assert state_of(nodes_of(trunk)[0]) == "submitted"


@pytest.mark.parametrize("obstacle", ["held", "folder", "link", "no locks"])
def test_failed_lock_of_a_tree_is_reported(trunk, programs, obstacle, monkeypatch, capfd):
    programs.add("sbatch", says="77\n")
    monkeypatch.setattr(submission, "PATIENCE_SECONDS", 0.1)
    lock = trunk / "children" / "submit.lock"
    lock.parent.mkdir(exist_ok=True)
    with ExitStack() as held:
        if obstacle == "held":
            held.enter_context(submission_lock(lock.parent))
        elif obstacle == "folder":
            lock.mkdir()
        elif obstacle == "link":
            lock.symlink_to(trunk.parent / "elsewhere")
        else:
            flock = Mock(side_effect=OSError(errno.ENOLCK, "No locks available"))
            monkeypatch.setattr(fcntl, "flock", flock)
        assert main_of_tree([str(trunk)]) == 0
    messages = {
        "held": "is being submitted or cancelled by process",
        "no locks": "file system has no locks",
    }
    assert messages.get(obstacle, "cannot be a lock: it is not a") in capfd.readouterr().err
    assert (state_of(nodes_of(trunk)[0]) == "submitted") == (obstacle == "no locks")
    assert not (trunk.parent / "elsewhere").exists()


def test_child_of_another_user_waits(tmp_path, programs, capfd):
    child = "{at_tokens: 100_000_000_000, with: weights, set: {budget.sequence_length: 2_048}}"
    composed = compose_run(read_point([*TREE[:-1], f"children.given={child}"]))
    trunk = trunk_with_checkpoint(composed.recipe, tmp_path)
    (node,) = nodes_of(trunk)
    folder = create_run_folder(composed.children["given"], node.folder_path)
    (folder.path / "jobs").mkdir()
    submitted(Jobs(folder), "5")
    seal_of(folder.recipe).unlink()
    submit_due(trunk, reopened_by=read_point([f"resume={trunk}"]))
    message = f"[given] not submitted: resume: {node.folder_path} was received"
    assert message in capfd.readouterr().err
    assert programs.calls() == []
