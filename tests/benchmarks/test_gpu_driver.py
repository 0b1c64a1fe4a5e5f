"""Parts of the GPU's half-hour keep every outcome, go on where they stopped, end in time."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.gpu import drive
from benchmarks.gpu.cases import CPU, GpuCase, cases_of, read_cases
from benchmarks.gpu.drive import main
from benchmarks.gpu.ours import compose
from command.arguments import ROOT
from components.errors import RecipeError

LONG_SECONDS = 1_000.0
HERE = {"name": CPU, "gib": float("inf")}
Write = Callable[[Mapping[str, tuple[str, float]]], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a file of cases: by name what befalls each, and the seconds it is said to take."""
    monkeypatch.setattr(drive, "device_here", lambda: HERE)  # else a process, to ask

    def call(cases: Mapping[str, tuple[str, float]]) -> Path:
        part = {
            name: {
                "runs": f"tests.benchmarks.gpu_faults.{what}",
                "seconds": seconds,
                "settings": {"note": str(tmp_path / name)},
            }
            for name, (what, seconds) in cases.items()
        }
        tree = {
            "seconds": 60,
            "words": {},
            "toys": {},
            "parts": {"T": part},
        }  # none that has kept results
        file = tmp_path / "cases.yaml"
        file.write_text(yaml.safe_dump(tree, sort_keys=False))
        return file

    return call


def words_for(file: Path, *words: str) -> list[str]:
    return ["part=T", f"cases={file}", f"out={file.parent}", "scale=toy", *words]


def results(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((file.parent / "T.json").read_text("utf-8"))
    return found


@pytest.mark.long
def test_memory_that_runs_out_and_other_failures_are_kept_as_results(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write({"none": ("runs_out", 60), "wrong": ("fails", 60), "gone": ("dies", 60)})
    assert main(words_for(file)) == 1
    kept = results(file)
    assert kept["none"]["outcome"] == "out of memory"
    assert kept["none"]["found"]["error"].startswith("CUDA out of memory. Tried")
    assert kept["none"]["found"]["peak_bytes"] > 0
    assert kept["wrong"]["outcome"] == "failed"
    assert kept["wrong"]["last_lines"][-1] == "ValueError: a shape that nobody has"
    assert kept["gone"]["status"] == -signal.SIGABRT
    assert "none: out of memory" in capsys.readouterr().out


@pytest.mark.long
def test_a_part_that_was_killed_goes_on_with_the_next_case(write: Write) -> None:
    file = write({"first": ("finds", 60), "slow": ("hangs", 60), "last": ("finds", 60)})
    command = [sys.executable, "-m", "benchmarks.gpu.drive", *words_for(file)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    note = file.parent / "slow"
    while not note.exists() or not note.read_text():
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    process.wait()
    with pytest.raises(ProcessLookupError):  # what it had started has ended with it
        os.kill(int(note.read_text()), 0)
    assert list(results(file)) == ["first"]
    file.write_text(file.read_text().replace("gpu_faults.hangs", "gpu_faults.finds"))
    assert main(words_for(file)) == 0
    assert {name: one["outcome"] for name, one in results(file).items()} == dict.fromkeys(
        ("first", "slow", "last"), "finished"
    )
    assert (file.parent / "first").read_text() == "ran\n"


@pytest.mark.long
def test_a_case_that_is_named_runs_again(write: Write) -> None:
    file = write({"first": ("finds", 60)})
    assert main(words_for(file)) == main(words_for(file, "case=first")) == 0
    assert (file.parent / "first").read_text() == "ran\nran\n"


@pytest.mark.long
def test_what_no_longer_fits_into_the_minutes_is_named_and_not_begun(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write({"long": ("finds", LONG_SECONDS), "short": ("finds", 30)})
    assert main(words_for(file, "minutes=2")) == 1
    assert list(results(file)) == ["short"]
    assert "not done for want of time: long\n" in capsys.readouterr().out


@pytest.mark.long
def test_a_case_that_takes_too_long_is_stopped_and_that_is_its_result(write: Write) -> None:
    file = write({"slow": ("hangs", 1)})
    began = time.monotonic()
    assert main(words_for(file)) == 1
    assert results(file)["slow"]["outcome"] == "timed out"
    assert time.monotonic() - began < LONG_SECONDS / 10


@pytest.mark.long
def test_a_case_that_the_minutes_cut_off_has_no_result(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write({"slow": ("hangs", 2)})
    assert main(words_for(file, "minutes=0.05")) == 1
    assert not (file.parent / "T.json").exists()
    assert "want of time: slow" in capsys.readouterr().out


def test_a_device_that_is_too_small_is_spared_the_case(
    write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write({"large": ("finds", 60)})
    large = GpuCase(name="large", part="T", runs="", seconds=1, least_gib=100, settings={})
    monkeypatch.setattr(drive, "read_cases", lambda *_, **__: [large])
    monkeypatch.setattr(drive, "device_here", lambda: {"name": "a small one", "gib": 79.0})
    assert main(words_for(file)) == 0
    assert capsys.readouterr().out == "large: not begun, it needs 100 GiB\n"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["part=Z"], "part: there is no part 'Z'"),
        (["part=A", "case=nothing"], "case: part A has no case 'nothing'"),
        (["part=A", "hours=1"], "hours: unknown word"),
        (["part=A", "minutes=soon"], "minutes: 'soon' is no number"),
        (["part=A"], "scale: torch sees no GPU here"),
    ],
)
def test_wrong_words_are_refused(
    words: list[str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drive, "device_here", lambda: HERE)
    with pytest.raises(RecipeError) as refused:
        main(words)
    assert str(refused.value).startswith(problem)


@pytest.mark.long
def test_every_case_is_of_full_size_and_has_time_within_a_call() -> None:
    cases = read_cases()
    assert {case.part for case in cases} == {"A", "B", "C", "D", "E"}
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert case.seconds <= 60 * drive.MINUTES
        if "scale=full" in case.settings.get("words", []):
            assert compose(case.settings["words"]).scale.name == "full"
        else:
            assert case.runs.startswith("benchmarks.gpu.checks")
    assert [case.name for case in cases_of("A", ["peaks"], cases)] == ["peaks"]
