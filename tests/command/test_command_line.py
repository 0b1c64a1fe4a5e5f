"""The command line as a user meets it: streams, JSON, exit statuses, sweeps."""

import fcntl
import json
import subprocess
import sys
from pathlib import Path
from pkgutil import iter_modules

import pytest

from command import actions
from command.actions import jobs
from command.main import main
from command.words import ACTIONS, OF_JOBS

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


def test_alone_it_names_every_action(tmp_path: Path) -> None:
    listed = call("--help", cwd=tmp_path).stdout
    assert set(ACTIONS) <= set(listed.split())
    assert len(ACTIONS) <= 20


@pytest.mark.parametrize("lines", [0, 1])
def test_a_reader_that_has_seen_enough_ends_the_command_without_a_word(
    lines: int, tmp_path: Path
) -> None:
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


def test_a_broken_pipe_that_is_not_standard_output_is_not_hidden(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(arguments: object) -> None:
        raise BrokenPipeError("to another process")

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("command.actions.show.run", broken)
    assert main(["recipe=teuken7b", "action=show"]) == 4
    assert "BrokenPipeError: to another process" in capfd.readouterr().err


def test_a_run_that_is_misspelt_is_offered_the_runs_beside_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
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
    assert set(tree["derived"]["parameters"]) == {
        "total",
        "active",
        "embedding",
        "expert",
        "padding",
    }
    assert set(tree["derived"]) >= {"tokens_per_step", "steps", "ranks", "flops_per_token"}


def test_text_shows_published_and_assumed_apart(tmp_path: Path) -> None:
    out = call("recipe=teuken7b", "action=show", "scale=full", cwd=tmp_path).stdout
    assert "7,452,725,248" in out
    before, after = out.split("(not in the sources)")
    assert "warmup_tokens" in after
    assert "score_average" in before


def test_a_sweep_prints_one_object_a_line_reports_bad_points_and_runs_the_rest(
    tmp_path: Path,
) -> None:
    words = ("-m", "recipe=teuken7b", "action=show", "output=json", "cluster.ranks=2,nine,1")
    done = call(*words, cwd=tmp_path)
    ranks = [json.loads(line)["derived"]["ranks"] for line in done.stdout.splitlines()]
    assert ranks == [2, 1]
    assert done.returncode == 2
    assert "cluster.ranks=nine" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_sweep_crosses_its_keys(tmp_path: Path) -> None:
    words = ("-m", "recipe=teuken7b", "action=show", "output=json", "budget.seed=1,2")
    done = call(*words, "optimizer.lr=1e-4,3e-4,1e-3", cwd=tmp_path)
    points = [json.loads(line)["recipe"] for line in done.stdout.splitlines()]
    pairs = [(point["budget"]["seed"], point["optimizer"]["lr"]) for point in points]
    assert pairs == [(s, lr) for s in (1, 2) for lr in (1e-4, 3e-4, 1e-3)]


@pytest.mark.long
def test_nothing_is_left_in_the_working_folder(tmp_path: Path) -> None:
    call(cwd=tmp_path)
    call("recipe=teuken7b", "action=show", cwd=tmp_path)
    call("-m", "recipe=teuken7b", "action=show", "budget.seed=1,2", cwd=tmp_path)
    call("recipe=nothing", cwd=tmp_path)
    call("recipe=teuken7b", "hydra.run.dir=stray", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_every_action_has_its_module() -> None:
    everywhere, of_jobs = (
        {module.name for module in iter_modules(room.__path__)} for room in (actions, jobs)
    )
    assert of_jobs == set(OF_JOBS)
    assert everywhere == {"jobs", *ACTIONS} - of_jobs


def imported(words: tuple[str, ...], folder: Path) -> set[str]:
    program = [sys.executable, "-X", "importtime", str(ROOT / "run.py"), *words]
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True, check=True)
    names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "command.main" in names
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("words", [(), ("recipe=teuken7b", "scale=full", "action=show")])
def test_what_answers_at_once_imports_no_torch(words: tuple[str, ...], tmp_path: Path) -> None:
    assert not imported(words, tmp_path) & {"torch", "lightning", "numpy"}


@pytest.mark.long
def test_locks_are_written_and_compared_without_torch(tmp_path: Path) -> None:
    lock = "file=./made.lock.yaml"
    for words in (
        ("recipe=mula1b", "action=pack", lock),
        ("action=verify", lock),
        ("action=diff", "a=mula1b", "b=made.lock.yaml"),
    ):
        assert not imported(words, tmp_path) & {"torch", "lightning"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("recipe=teuken7",), "recipe: unknown recipe: 'teuken7'\n  did you mean teuken7b?"),
        (("recipe=../recipes/teuken7b",), "unknown recipe: '../recipes/teuken7b'"),
        (("cluster=jewels",), "cluster: unknown cluster: 'jewels'\n  did you mean juwels?"),
        (("scale=medium",), "scale: unknown scale: 'medium'"),
        (("modle.dim=3",), "modle: unknown key\n  did you mean model?"),
        (("model.dimm=3",), "model.dimm: unknown key\n  did you mean dim?"),
        (("model.mlp.dropout=0.1",), "model.mlp.dropout: unknown key"),
        (
            ("budget.totl_tokens=3",),
            "budget.totl_tokens: unknown key\n  did you mean total_tokens",
        ),
        (("budget.seed.x=3",), "budget.seed is a value and has no keys"),
        (("model.dim=sixty",), "model.dim: input should be a valid integer, got 'sixty'"),
        (
            ("model.attention.num_kv_heads=3",),
            "model.attention.num_kv_heads: 3 does not divide",
        ),
        (("budget.total_tokens=100",), "100 is less than budget.global_batch_tokens 4,096"),
        (("data.shares={en: 0.5, de: 0.2}",), "2 shares add up to 0.700000, not 1"),
        (("data.shares.en=0.9",), "shares add up to"),
        (("data.sources.xx.files=[a.txt]",), "data.sources.xx: this source has no share"),
        (("optimizer.lr=1e-4,3e-4",), "optimizer.lr: several values in"),
        (("--cfg=all",), "--cfg: not supported: Hydra only composes the recipe here"),
        (("+model.x=1",), "model.x: unknown key"),
        (("~model.dim",), "~model.dim: not supported: Hydra only composes the recipe here"),
        (("hydra.run.dir=x",), "hydra.run.dir: not supported: Hydra only composes"),
        (("model.dim=[1",), "model.dim: "),
        (("budget.seed=1", "budget.seed=2"), "budget.seed: given twice"),
        (
            ("action=plan", "cluster=local"),
            "cluster.hardware: there is no measured hardware profile of the cluster 'local'",
        ),
        (("action=trian",), "action: unknown action: 'trian'\n  did you mean train?"),
        (("output=xml",), "output: input should be 'text' or 'json', got 'xml'"),
        (("description=${oc.env:HOME}",), "description: '${oc.env:HOME}' is refused"),
        (
            ("model.mlp._target_=os.system",),
            "model.mlp._target_: 'os.system' is not an",
        ),
        (("run=",), "run: the path is empty"),
        (("file=a\0b",), "file: 'a\\x00b' contains a null character"),
        (
            ("cluster=juwels", "site.runs=nowhere"),
            "site.runs: 'nowhere' is not an absolute",
        ),
        (("cluster=juwels", "action=train"), "this machine is not 128 nodes of juwels"),
        (("scale=full", "action=prepare"), "data.sources.bg: this source has no text files"),
        (
            ("precision.compute=float16",),
            "precision.loss_scale: none, but float16 gradients underflow",
        ),
        (("optimizer.beta1=1.5",), "optimizer.beta1: input should be less than 1, got 1.5"),
        (
            ("schedule.phases.first.start=2.0",),
            "input should be less than or equal to 1, got 2.0",
        ),
        (("model.attention.head_dim=33",), "33 is odd, but rotary positions"),
        (("action=report",), "run: a run is required"),
        (("action=report", "run=nowhere"), "run: nowhere is not a run folder"),
        (("action=pack", "run=nowhere"), "run: nowhere is not a run folder"),
        (("resume=nowhere",), "resume: nowhere is not a run folder"),
        (("teuken7b",), "teuken7b: expected key=value\n  write recipe=teuken7b"),
        (("show",), "show: expected key=value\n  write action=show"),
        (("--cluster.ranks=2",), "expected key=value\n  write cluster.ranks=2"),
        (("output", "action=show"), "output: expected key=value\n  write output=..."),
        (("run", "action=report"), "run: expected key=value\n  write run=..."),
        (("colour=",), "colour: unknown key"),
        (("clustr",), "clustr: expected key=value\n  did you mean cluster?"),
        (("budget.total_tokens=1e6",), "got 1000000.0\n  write budget.total_tokens=1_000_000"),
        (("budget.total_tokens=1.5",), "budget.total_tokens: input should be a valid integer"),
        (
            ("data.sources.de.file=[a]",),
            "data.sources.de.file: unknown key\n  did you mean files?",
        ),
        (
            ("data.sources.de.dataset={pth: a}",),
            "did you mean path? set data.sources.de.dataset.path=...",
        ),
        (("action=verify", "file=no.lock.yaml"), "file: no.lock.yaml does not exist"),
        (("action=diff", "a=teuken7b", "b=teuken8b"), "b: unknown recipe: 'teuken8b'"),
        (("action=diff", "a=none.yaml", "b=teuken7b"), "a: none.yaml does not exist"),
    ],
)
def test_wrong_input_gets_one_message_and_status_two(
    words: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    own = ("recipe=", "resume=", *(f"action={a}" for a in ("report", "pack", "verify", "diff")))
    first = () if any(word.startswith(own) for word in words) else ("recipe=teuken7b",)
    shown = (
        ()
        if any(w.startswith(("action=", "resume=", "cluster=", "precision")) for w in words)
        else ("action=show",)
    )
    monkeypatch.chdir(tmp_path)
    # In this process: that a process exits with the status is shown beside.
    assert main([*first, *words, *shown]) == 2
    said = capfd.readouterr()
    assert message in said.err
    assert "Traceback" not in said.err
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_must_be_named(tmp_path: Path) -> None:
    done = call("action=plan", cwd=tmp_path)
    assert done.returncode == 2
    assert "recipe: a recipe is required" in done.stderr
