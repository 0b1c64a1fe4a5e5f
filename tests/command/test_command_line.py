"""The command line as a user meets it: streams, JSON, exit statuses, sweeps."""

import fcntl
import json
import re
import subprocess
import sys
from pathlib import Path
from pkgutil import iter_modules

import pytest

from command import actions
from command.actions import jobs
from command.main import main
from command.words import ACTIONS, OF_JOBS

Said = pytest.CaptureFixture[str]

ROOT = Path(__file__).resolve().parents[2]
SMALLEST_PIPE = 4_096


def call(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, str(ROOT / "run.py"), *words]
    return subprocess.run(program, cwd=cwd, capture_output=True, text=True, check=False)


def test_show_alone_lists_the_recipes_one_line_each(tmp_path: Path) -> None:
    done = call("action=show", cwd=tmp_path)
    assert done.returncode == 0
    stems = sorted(file.stem for file in (ROOT / "recipes").rglob("*.yaml"))
    listed = [line.split()[0] for line in done.stdout.splitlines()[-len(stems) :]]
    assert listed == stems


@pytest.mark.parametrize("lines", [0, 1])
def test_closed_pipe_ends_command_silently(lines: int, tmp_path: Path) -> None:
    words = ("recipe=teuken7b", "action=show", "full=true")
    program = [sys.executable, str(ROOT / "run.py"), *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        program, cwd=tmp_path, bufsize=0, stdout=pipe, stderr=pipe
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        # Too small for all that is said: the writer waits, or hears that nobody reads.
        fcntl.fcntl(running.stdout, fcntl.F_SETPIPE_SZ, SMALLEST_PIPE)
        for _ in range(lines):
            assert running.stdout.readline()
        running.stdout.close()
        said = running.stderr.read()
    assert said == b""
    assert running.returncode == 141


def test_other_broken_pipe_is_shown(monkeypatch, tmp_path, capfd):
    def broken(arguments: object) -> None:
        raise BrokenPipeError("to another process")

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("command.actions.show.run", broken)
    assert main(["recipe=teuken7b", "action=show"]) == 4
    assert "BrokenPipeError: to another process" in capfd.readouterr().err


def test_misspelled_run_offers_nearby_runs(tmp_path: Path, capfd: Said) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "recipe.json").touch()
    assert main(["action=export", f"run={tmp_path}/frist"]) == 2
    offered = f"{tmp_path} has: did you mean first?"
    assert offered in capfd.readouterr().err


def test_json_is_one_object_and_nothing_else(tmp_path: Path) -> None:
    done = call("recipe=teuken7b", "action=show", "output=json", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == ""
    tree = json.loads(done.stdout)
    assert set(tree) >= {"recipe", "derived"}
    kinds = {"total", "active", "embedding", "expert", "padding"}
    assert set(tree["derived"]["parameters"]) == kinds
    assert set(tree["derived"]) >= {"tokens_per_step", "steps", "ranks", "flops_per_token"}
    assert list(tmp_path.iterdir()) == []


def test_sweep_prints_one_object_a_line_and_reports_bad_points(tmp_path: Path) -> None:
    words = ("-m", "recipe=teuken7b", "action=show", "output=json", "cluster.ranks=2,nine,1")
    done = call(*words, cwd=tmp_path)
    ranks = [json.loads(line)["derived"]["ranks"] for line in done.stdout.splitlines()]
    assert ranks == [2, 1]
    assert done.returncode == 2
    assert "cluster.ranks=nine" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_action_has_its_module() -> None:
    everywhere, of_jobs = (
        {module.name for module in iter_modules(room.__path__)} for room in (actions, jobs)
    )
    assert of_jobs == set(OF_JOBS)
    assert everywhere == {"jobs", *ACTIONS} - of_jobs


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("recipe=../recipes/teuken7b", "unknown recipe: '../recipes/teuken7b'"),
        ("description=${oc.env:HOME}", "description: '${oc.env:HOME}' is refused"),
        ("model.mlp._target_=os.system", "model.mlp._target_: 'os.system' is not an"),
        ("run=", "run: the path is empty"),
        ("file=a\0b", "file: 'a\\x00b' contains a null character"),
        ("cluster=juwels site.runs=nowhere", "site.runs: 'nowhere' is not an absolute"),
        ("schedule.phases.first.start=2.0", "input should be less than or equal to 1, got 2.0"),
        ("resume=nowhere", "resume: nowhere is not a run folder"),
        ("--cluster.ranks=2", "expected key=value\n  write cluster.ranks=2"),
        ("output action=show", "output: expected key=value\n  write output=..."),
        ("run action=report", "run: expected key=value\n  write run=..."),
        ("clustr", "clustr: expected key=value\n  did you mean cluster?"),
        ("budget.total_tokens=1.5", "budget.total_tokens: input should be a valid integer"),
        ("data.sources.de.dataset={pth:a}", "mean path? set data.sources.de.dataset.path=..."),
        ("action=verify file=no.lock.yaml", "file: no.lock.yaml does not exist"),
        ("action=diff a=teuken7b b=teuken8b", "b: unknown recipe: 'teuken8b'"),
        ("action=diff a=none.yaml b=teuken7b", "a: none.yaml does not exist"),
    ],
)
def test_wrong_input_has_a_message(words: str, message: str, folder: Path, capfd: Said) -> None:
    own = ("recipe=", "resume=", "action=report", "action=verify", "action=diff", "run action")
    first = [] if words.startswith(own) else ["recipe=teuken7b"]
    shown = [] if re.search("action=|resume=|cluster=", words) else ["action=show"]
    # In this process: that a process exits with the status is shown beside.
    assert main([*first, *words.split(" "), *shown]) == 2
    said = capfd.readouterr()
    assert message in said.err
    assert "Traceback" not in said.err
    assert said.out == ""
    assert list(folder.iterdir()) == []
