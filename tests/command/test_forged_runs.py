"""Run folders that somebody has forged or cut: one message each, and nothing outside changes.

One tiny run is made, and a copy of it forged for each case, under every action that reads the
file.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from command.main import main
from components.errors import RecipeError
from components.run.folder import RunFolder
from components.train.launch import how_it_ended
from tests.life.conftest import TINY, act

Said = pytest.CaptureFixture[str]

CHAIN = (
    {"kind": "submit", "at": "2026-01-01", "words": [], "jobs": 2},
    {"kind": "submitted", "at": "2026-01-01", "chain": "7"},
    {"kind": "began", "at": "2026-01-02", "job": "7", "attempt": 0, "nodes": [], "tokens": 0},
)
NOWHERE = "http://127.0.0.1:9"
ACTIONS = {
    "status": ("action=status", "run=run"),
    "cancel": ("action=cancel", "run=run"),
    "readmit": ("action=status", "run=run", "exclude=none"),
    "report": ("action=report", "run=run", "file=report.html"),
    "lock": ("action=pack", "run=run", "file=a.lock.yaml"),
    "pack": ("action=pack", "run=run", "file=a.recipe.yaml"),
    "verify": ("action=verify", "file=good.lock.yaml", "run=run"),
    "diff": ("action=diff", "a=run", "b=run"),
    "export": ("action=export", "run=run", "file=exported"),
    "evaluate": ("action=evaluate", "run=run"),
    "preflight": ("action=preflight", "run=run"),
    "calibrate": ("action=plan", "recipe=teuken7b", "calibrate=[run]"),
    "sync": ("action=report", "sync=true", "run=run", "tracking=mlflow", f"to={NOWHERE}"),
    "resume": ("resume=run",),
}
# Who reads what; where a file is forged, the first of them refuses it.
READERS = {
    "recipe.json": tuple(ACTIONS),
    "derived.json": ("report", "sync"),
    "environment.json": ("lock", "pack", "report"),
    "software.json": ("lock", "diff", "verify"),
    "data.json": ("export", "evaluate", "lock", "diff", "preflight", "report", "resume"),
    "results.json": ("status", "export", "report", "calibrate", "resume"),
    "evaluation/tokens-000000000001024.json": ("report", "evaluate"),
    "profile/rank-0.json": ("report",),
}
Forge = Callable[[Path], object]


def instead(file: Path, make: Callable[[Path], None]) -> None:
    file.unlink()
    make(file)


FORGERIES: dict[str, Forge] = {
    "a list": lambda file: file.write_text("[]"),
    "no key": lambda file: file.write_text("{}"),
    "half of it": lambda file: os.truncate(file, file.stat().st_size // 2),
    "no UTF-8": lambda file: file.write_bytes(b'{"a": "\xff"}'),
    "brackets": lambda file: file.write_text("[" * 100_000 + "]" * 100_000),
    "a pipe": lambda file: instead(file, os.mkfifo),
    "a gigabyte": lambda file: os.truncate(file, 1 << 30),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with one run that has everything, and a lock of it."""
    home = tmp_path_factory.mktemp("made")
    own = ("budget.total_tokens=1_024", "checkpoint.every_tokens=1_024")
    kept = [word for word in TINY if not word.startswith(("budget.total", "checkpoint.every"))]
    profiled = ("profiler.steps=1", "profiler.first_step=1")
    assert act(home, *kept, *own, *profiled, "run=run") == 0
    assert act(home, "action=evaluate", "run=run") == 0
    assert act(home, "action=pack", "run=run", "file=good.lock.yaml") == 0
    (home / "run" / "jobs").mkdir()
    lines = "".join(f"{json.dumps(line)}\n" for line in CHAIN)
    (home / "run" / "jobs" / "chain.jsonl").write_text(lines)
    return home


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy to forge, beside somebody's files."""
    shutil.copytree(made / "run", tmp_path / "run")
    shutil.copy(made / "good.lock.yaml", tmp_path)
    (tmp_path / "prepared").symlink_to(made / "prepared")
    (tmp_path / "theirs" / "tokens-000000000000001").mkdir(parents=True)
    (tmp_path / "theirs" / "victim").write_text("theirs\n")
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    yield tmp_path / "run"
    os.environ.clear()  # what actions set for the libraries that they call
    os.environ.update(before)


def ask(action: str, capfd: Said) -> tuple[int, str]:
    """Act in this process: a traceback would be this test's."""
    capfd.readouterr()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        status = main(ACTIONS[action])
    finally:
        torch.set_num_threads(threads)
    said = capfd.readouterr().err
    assert status in {0, 1, 2, 3}, action
    assert "Traceback" not in said
    assert status != 2 or said.strip(), action
    return status, said


def untouched(run: Path) -> bool:
    theirs = run.parent / "theirs"
    return (theirs / "victim").read_text() == "theirs\n" and len(list(theirs.iterdir())) == 2


# Each file and each forgery; tests/attack/cases/run.yaml has more of both.
@pytest.mark.parametrize(
    ("name", "forgery"),
    [
        *(("recipe.json", "a list"), ("recipe.json", "a pipe"), ("derived.json", "no key")),
        *(("environment.json", "no UTF-8"), ("software.json", "brackets")),
        *(("data.json", "half of it"), ("results.json", "a gigabyte")),
        ("evaluation/tokens-000000000001024.json", "a list"),
        ("profile/rank-0.json", "no key"),
    ],
)
def test_forged_file_is_refused(run: Path, name: str, forgery: str, capfd: Said) -> None:
    FORGERIES[forgery](run / name)
    if name != "results.json":
        (run / "results.json").unlink()  # so that it can be resumed
    refused = {}
    for action in READERS[name]:
        status, said = ask(action, capfd)
        if status == 2:
            refused[action] = said
    assert next(iter(READERS[name])) in refused
    assert untouched(run)


@pytest.mark.parametrize(
    ("name", "forgery"),
    [
        *(("metrics.jsonl", "no UTF-8"), ("metrics.jsonl", "a pipe")),
        *(("events.jsonl", "half of it"), ("events.jsonl", "brackets")),
        *(("jobs/chain.jsonl", "a list"), ("jobs/chain.jsonl", "a gigabyte")),
    ],
)
def test_bad_lines_are_left_out(run: Path, name: str, forgery: str, capfd: Said) -> None:
    FORGERIES[forgery](run / name)
    others = ("lock", "diff", "report", "sync" if forgery == "a pipe" else "pack")
    for action in ("status", "cancel", "readmit") if "chain" in name else others:
        ask(action, capfd)


def test_a_step_record_that_a_kill_cut_is_skipped(run: Path, capfd: Said) -> None:
    records = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    records.insert(1, '{"kind": "step", "st\n')
    (run / "metrics.jsonl").write_text("".join(records))
    for action in ("lock", "pack", "diff", "verify", "report"):
        status, stderr = ask(action, capfd)
        assert status == 0, (action, stderr)
    whole, cut = (
        (run.parent / name).read_text().partition("losses:")[2]
        for name in ("good.lock.yaml", "a.lock.yaml")
    )
    assert cut[:200] == whole[:200]


@pytest.mark.parametrize(
    "forgery", [one for one in FORGERIES if one not in {"half of it", "a gigabyte"}]
)
def test_the_error_of_a_rank_is_read_as_data(run: Path, forgery: str) -> None:
    (run / "results.json").unlink()
    file = run / "ranks" / "first_failure.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text("{}")
    FORGERIES[forgery](file)
    with pytest.raises(RecipeError, match=r"first_failure\.json: "):
        how_it_ended(RunFolder(run), 1)


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("metrics.jsonl", "../theirs/victim"),
        ("checkpoints/tokens-000000000000001", "../../theirs/tokens-000000000000001"),
        ("results.json", "../theirs/victim"),
    ],
)
def test_no_action_follows_a_link(run: Path, link: str, target: str, capfd: Said) -> None:
    (run / link).unlink(missing_ok=True)
    (run / link).symlink_to(target)
    for action in ACTIONS:
        status, said = ask(action, capfd)
        assert status == 2, action
        assert "is a link that leads out of the run" in said or action == "calibrate", said
    assert untouched(run)


def test_marker_of_other_file_is_damaged(run: Path, capfd: Said) -> None:
    from components.checkpoint.metadata import MARKER, read_marker

    (checkpoint,) = (run / "checkpoints").iterdir()
    marker = read_marker(checkpoint)
    object.__setattr__(marker, "files", {"../../../theirs/victim": ()})
    (checkpoint / MARKER).write_text(marker.to_json())
    status, said = ask("export", capfd)
    assert status == 2
    assert "all checkpoints are damaged" in said
    assert "files" in said


def test_resume_reads_checked_data(run: Path, capfd: Said) -> None:
    (run / "results.json").unlink()
    kept = json.loads((run / "data.json").read_text())
    (run / "data.json").write_text(json.dumps(kept | {"folder": str(run.parent / "theirs")}))
    assert ask("resume", capfd)[0] == 0
    assert json.loads((run / "data.json").read_text()) == kept
    assert untouched(run)
