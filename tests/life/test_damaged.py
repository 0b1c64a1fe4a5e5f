"""A run whose newest checkpoint is damaged, and one that cannot save: what a user sees."""

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from components.checkpoint.metadata import newest_checkpoint, tokens_of
from components.fault_tolerance.failures import MENDABLE
from components.fault_tolerance.faults import fill_up, truncate_newest
from tests.components.checkpoint import damage_cases as damages
from tests.life.conftest import ROOT, Program, act, entries, environment, tiny

WORDS = tiny(
    "budget.total_tokens=4_608",
    "checkpoint.every_tokens=1_536",
    "checkpoint.weights_every_tokens=4_608",
    "evaluation.every_tokens=4_608",
    "evaluation.max_windows_per_source=4",
    "checkpoint.retry_seconds=0",
)
STEPS, SAVED_STEPS = 9, 3
NO_LARGER_BYTES = 150_000  # than what is no checkpoint: these have 370,000


@pytest.fixture(scope="module")
def whole(home: Path) -> Path:
    run = home / "whole"
    assert act(home, *WORDS, f"run={run}") == 0
    return run


def weights(run: Path) -> dict[str, Any]:
    (folder,) = (run / "checkpoints").glob("weights-*")
    (file,) = folder.glob("*.safetensors")
    return load_file(file)


def unfinished(whole: Path, folder: Path) -> Path:
    """Copy the run as a kill leaves it that comes before its results."""
    run = Path(shutil.copytree(whole, folder / "run"))
    (run / "results.json").unlink()
    return run


def early(whole: Path, folder: Path) -> Path:
    """Copy the run as it was before its last checkpoint."""
    run = unfinished(whole, folder)
    for one in [*(run / "checkpoints").glob("weights-*"), damages.newest(run / "checkpoints")]:
        shutil.rmtree(one)
    return run


@pytest.mark.long
def test_a_run_resumes_before_a_damaged_checkpoint_with_the_same_bits(whole, tmp_path, program):
    run = unfinished(whole, tmp_path)
    expected = weights(run)
    shutil.rmtree(next((run / "checkpoints").glob("weights-*")))
    truncate_newest(run / "checkpoints")
    said = program(f"resume={run}").stderr
    assert "resuming from" in said
    (resume,), (damaged,) = entries(run, "resume"), entries(run, "damaged")
    assert resume["step"] == damaged["step"] == 2 * SAVED_STEPS
    assert "were written" in damaged["evidence"]["problem"]
    found = weights(run)
    assert found.keys() == expected.keys()
    assert all(tensor.equal(found[name]) for name, tensor in expected.items())
    assert (run / "checkpoints" / f"damaged-tokens-{4_608:015d}").is_dir()


def test_every_checkpoint_event_has_its_cost(whole: Path) -> None:
    lines = entries(whole, "checkpoint")
    assert [line["step"] for line in lines] == [SAVED_STEPS, 2 * SAVED_STEPS, STEPS, STEPS]
    evidence = [line["evidence"] for line in lines]
    for line, one in zip(lines, evidence, strict=True):
        assert 0 <= one["waited_seconds"] <= line["seconds"] < one["seconds"]
        assert one["bytes"] > 0
        assert one["reasons"] == []  # to wait for the disk
    assert [Path(one["folder"]).name[:7] for one in evidence[-2:]] == ["tokens-", "weights"]
    assert all(Path(one["folder"]).is_dir() for one in evidence[1:])


def test_a_run_that_cannot_save_ends_with_a_message_and_resumes(whole, tmp_path, program):
    run = early(whole, tmp_path)
    with fill_up(NO_LARGER_BYTES):
        said = program(f"resume={run}", status=2).stderr
    assert "cannot be written: File too large" in said
    assert "then resume the run: the previous checkpoint is complete" in said
    assert "Traceback" not in said
    left = newest_checkpoint(run / "checkpoints")
    assert left is not None
    assert tokens_of(left) == 3_072
    program(f"resume={run}")
    assert [entry["step"] for entry in entries(run, "resume")] == [2 * SAVED_STEPS] * 2


@pytest.mark.long
def test_a_rank_that_cannot_write_its_error_prints_it_and_sets_its_status(whole, tmp_path):
    """As on a full disk: there is no room for its error, either."""
    run = early(whole, tmp_path)
    (run / "events.jsonl").unlink()
    (run / "events.jsonl").mkdir()
    assert not (run / "ranks").exists()
    done = subprocess.run(
        [sys.executable, "-m", "components.train", str(run)],
        cwd=tmp_path,
        env=environment() | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == MENDABLE, done.stderr
    assert f"{run / 'events.jsonl'}: cannot be written: Is a directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_with_missing_checkpoints_does_not_restart(whole, tmp_path, program):
    run = unfinished(whole, tmp_path)
    (run / "checkpoints").rename(tmp_path / "away")
    said = program(f"resume={run}", status=2).stderr
    assert "cannot be written: No such file or directory" in said
    assert not (run / "checkpoints").exists()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB: what it says when full or read-only is the kernel's own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_a_run_on_a_full_disk_writes_nothing_and_resumes_later(whole, disk, program):
    run = early(whole, disk)
    before = contents(run / "checkpoints")
    filler, free = disk / "filler", shutil.disk_usage(disk).free
    filler.write_bytes(bytes(free - NO_LARGER_BYTES))
    said = program(f"resume={run}", status=2).stderr
    assert f"{run / 'checkpoints'}: cannot be written: a checkpoint needs " in said
    assert "free space, or lower checkpoint.keep or checkpoint.files, then resume" in said
    assert "Traceback" not in said
    assert contents(run / "checkpoints") == before
    filler.unlink()
    program(f"resume={run}")
    expected, found = weights(whole), weights(run)
    assert all(tensor.equal(found[name]) for name, tensor in expected.items())


def test_a_read_only_run_folder_is_refused_and_unchanged(whole, disk, program):
    run = early(whole, disk)
    before = contents(run)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    said = program(f"resume={run}", status=2).stderr
    assert f"{run}/" in said
    assert "cannot be written: Read-only file system" in said
    assert "put the run on a writable file system" in said
    assert "Traceback" not in said
    assert contents(run) == before


@pytest.mark.parametrize(
    ("damage", "problem", "remedy"),
    [
        (
            lambda checkpoints: damages.flip(damages.first_file(checkpoints), -1),
            "was changed after it was written",
            "restore a checkpoint from a copy",
        ),
        (
            damages.put_a_pickle_and_mark_it,
            "is not a safetensors file of a checkpoint",
            "remove ",
        ),
    ],
    ids=["a changed byte", "a pickle"],
)
def test_a_damaged_checkpoint_is_refused_and_neither_changed_nor_executed(
    damage: Callable[[Path], None],
    problem: str,
    remedy: str,
    whole: Path,
    tmp_path: Path,
    program: Program,
    unpickled: list[tuple[str, str]],
) -> None:
    run = early(whole, tmp_path)
    damage(run / "checkpoints")
    before = contents(run / "checkpoints")
    assert before
    said = program(f"resume={run}", status=2).stderr
    assert problem in said
    assert remedy in said
    assert "Traceback" not in said
    assert contents(run / "checkpoints") == before
    assert FUNCTION not in unpickled


FUNCTION = (os.mkdir.__module__, "mkdir")  # which the planted pickle calls


@pytest.fixture(scope="module")
def trace() -> list[tuple[str, str]]:
    """What any pickle of this process asks for by name, as Python's audit hooks tell it."""
    found: list[tuple[str, str]] = []

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "pickle.find_class":
            found.append(arguments)

    sys.addaudithook(hear)  # none can be taken off: it costs a comparison an event
    return found


@pytest.fixture
def unpickled(
    trace: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, str]]:
    """The trace, after it was seen to catch the pickle that the tests plant."""
    monkeypatch.chdir(tmp_path)
    trace.clear()
    pickle.loads(pickle.dumps(damages.Bomb()))
    assert trace == [FUNCTION]
    trace.clear()
    return trace
