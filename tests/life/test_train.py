"""The loop as a user meets it: whole, killed, interrupted, on two ranks, swept."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from components.build import build_node
from components.config.check import read_recipe
from tests.life.conftest import (
    ROOT,
    TINY,
    Program,
    act,
    check_same_bits,
    command,
    entries,
    environment,
    records,
    tiny,
)

# A start's clock and that of its record are read one after the other.
CLOCKS_SECONDS = 0.25


@pytest.fixture(scope="module")
def whole(home: Path) -> Path:
    """An uninterrupted run."""
    run = home / "whole"
    assert act(home, *TINY, f"run={run}") == 0
    return run


def test_a_run_writes_all_files_of_its_folder(whole: Path) -> None:
    names = {path.name for path in whole.iterdir()}
    assert names >= {
        *("recipe.json", "derived.json", "environment.json", "data.json", "metrics.jsonl"),
        *("results.json", "report.html", "checkpoints", "tensorboard"),
    }
    results = json.loads((whole / "results.json").read_text())
    assert results["status"] == "finished"
    assert results["steps"] == 24
    assert results["tokens"] == 24 * 512
    only_process = results["last_process_seconds"]
    assert results["seconds"] == pytest.approx(only_process, abs=CLOCKS_SECONDS)
    assert set(results["flops_per_second"]) == {"full", "causal"}
    (drawn,) = results["mixture"].values()
    assert (drawn["samples"], drawn["share"], drawn["promised_share"]) == (192, 1.0, 1.0)
    assert list((whole / "tensorboard").glob("events*"))
    steps = entries(whole, "step")
    assert [entry["step"] for entry in steps] == list(range(1, 25))
    assert steps[-1]["loss"] < steps[0]["loss"]
    kept = sorted(path.name for path in (whole / "checkpoints").iterdir())
    assert kept == ["tokens-000000000009216", "tokens-000000000012288"]


def test_each_step_has_the_learning_rate_of_its_tokens(whole: Path) -> None:
    recipe = read_recipe(whole / "recipe.json")
    schedule = build_node(recipe.schedule, "schedule")
    for step in entries(whole, "step"):
        rate = recipe.optimizer["lr"] * schedule((step["step"] - 1) * 512)
        assert step["lr"] == pytest.approx(rate)


def test_a_killed_run_resumes_by_its_printed_command_with_the_same_bits(whole, home, program):
    run = home / "killed"
    process = subprocess.Popen(
        command(*TINY, f"run={run}"),
        cwd=home,
        env=environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    printed = ""
    for line in process.stderr:
        found = re.search(r"run\.py (resume=\S+)\)", line)
        printed = found.group(1) if found else printed
        if len(entries(run, "checkpoint")) >= 2:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    assert printed == f"resume={run}"
    saved = entries(run, "checkpoint")[-1]["step"]
    before = records(run)
    program(printed)
    lines = records(run)
    resumed = next(index for index, line in enumerate(lines) if line["kind"] == "resume")
    results = json.loads((run / "results.json").read_text())
    killed_seconds = before[-1]["time"] - before[0]["time"] + before[0]["seconds"]
    uninterrupted = json.loads((whole / "results.json").read_text())
    assert results["held_out"] == uninterrupted["held_out"]
    of_both = killed_seconds + results["last_process_seconds"]
    assert results["seconds"] == pytest.approx(of_both, abs=CLOCKS_SECONDS)
    began = lines[resumed]["step"]
    assert began >= saved  # the kill may have come between a checkpoint and its line
    computed = [line["step"] for line in lines[resumed:] if line["kind"] == "step"]
    assert computed == list(range(began + 1, 25))
    check_same_bits(run, whole)
    assert (run / "report.html").is_file()


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.long)])
def test_an_interrupt_saves_and_prints_the_resume_command(home: Path, ranks: int) -> None:
    run = home / f"interrupted-{ranks}"
    words = tiny("budget.total_tokens=50_000_000", "evaluation.every_tokens=50_000_000")
    process = subprocess.Popen(
        command(*words, f"cluster.ranks={ranks}", f"run={run}"),
        cwd=home,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while process.poll() is None:
        if entries(run, "step"):
            break
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: everyone gets Ctrl-C
    out, err = process.communicate(timeout=600)
    assert process.returncode == 3, err[-4000:]
    assert f"python {ROOT / 'run.py'} resume={run}" in out
    assert "Traceback" not in err
    last = entries(run, "step")[-1]
    assert entries(run, "checkpoint")[-1]["step"] == last["step"]
    results = json.loads((run / "results.json").read_text())
    assert results["status"] == "stopped"
    assert results["held_out"]["first"] > 0
    assert (results["held_out"]["final"], results["held_out"]["rising"]) == (None, None)
    assert "held-out loss: no evaluation since step 0" in out.splitlines()


def test_a_nan_after_the_last_step_fails_the_run(home: Path, program: Program) -> None:
    """No guard sees it: the step's own loss is that of the weights before it."""
    run = home / "broken"
    words = tiny("optimizer.lr=1e300", "budget.total_tokens=1_024")
    done = program(*words, f"run={run}", status=1)
    line = "the run failed: not finite at the end: held-out loss"
    assert line in done.stderr.splitlines()
    results = json.loads((run / "results.json").read_text(), parse_constant=pytest.fail)
    assert results["held_out"]["final"] is None
    assert "held_out.final" in results["not_finite"]


def test_a_nan_loss_without_guards_fails_the_run(home: Path, program: Program) -> None:
    words = tiny("optimizer.lr=1e300", "budget.total_tokens=2_048", "guard=none")
    done = program(*words, f"run={home / 'lost'}", status=1)
    assert "not finite at the end: training loss, held-out loss" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*TINY, "optimizer.lr=1e-5", "run={run}"), "{run} has a different recipe"),
        ((*TINY, "run={run}"), "resume={run}"),
        (("resume={run}",), "has finished"),
        (("resume={run}", "optimizer.lr=1e-5"), "a resumed run cannot change optimizer.lr"),
    ],
)
def test_a_finished_run_is_refused(words, message, whole, program):
    done = program(*(word.replace("{run}", str(whole)) for word in words), status=2)
    assert message.replace("{run}", str(whole)) in done.stderr


def test_a_run_on_missing_nodes_is_refused_before_it_has_a_folder(home, program):
    words = ("cluster.ranks=2", "cluster.nodes=2")
    done = program(*TINY, *words, f"run={home / 'never'}", status=2)
    assert "cluster: this machine is not 2 nodes of local" in done.stderr
    assert not (home / "never").exists()


def test_a_report_of_several_runs_is_one_file(whole, home, program):
    done = program("action=report", f"runs=[{whole},{home / 'killed'}]", "file=both.html")
    assert done.stdout.strip() == "both.html"
    assert "killed" in (home / "both.html").read_text()
