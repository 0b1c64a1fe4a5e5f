"""The GPU driver stores every outcome, continues interrupted parts and ends in time."""

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
from benchmarks.gpu.cases import CPU, GpuCase, read_cases, select_cases
from benchmarks.gpu.drive import main
from benchmarks.gpu.own_step import compose_case
from command.arguments import ROOT
from components.errors import RecipeError

LONG_SECONDS = 1_000.0
CPU_DEVICE = {"name": CPU, "gib": float("inf")}
Write = Callable[[Mapping[str, tuple[str, float]]], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that writes a file of cases: fault and expected seconds by name."""
    monkeypatch.setattr(drive, "detect_device", lambda: CPU_DEVICE)  # saves a process

    def write_cases(cases: Mapping[str, tuple[str, float]]) -> Path:
        part = {
            name: {
                "runs": f"tests.benchmarks.gpu_faults.{function}",
                "seconds": seconds,
                "settings": {"note": str(tmp_path / name)},
            }
            for name, (function, seconds) in cases.items()
        }
        # There are no stored results of part T.
        tree = {"seconds": 60, "words": {}, "toys": {}, "parts": {"T": part}}
        file = tmp_path / "cases.yaml"
        file.write_text(yaml.safe_dump(tree, sort_keys=False))
        return file

    return write_cases


def words_for(file: Path, *words: str) -> list[str]:
    return ["part=T", f"cases={file}", f"out={file.parent}", "scale=toy", *words]


def read_results(file: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((file.parent / "T.json").read_text("utf-8"))
    return results


@pytest.mark.long
def test_out_of_memory_and_other_failures_are_stored_as_results(write, capsys):
    file = write({"none": ("exhaust_memory", 60), "wrong": ("fail", 60), "gone": ("abort", 60)})
    assert main(words_for(file)) == 1
    results = read_results(file)
    assert results["none"]["outcome"] == "out of memory"
    assert results["none"]["found"]["error"].startswith("CUDA out of memory. Tried")
    assert results["none"]["found"]["peak_bytes"] > 0
    assert results["wrong"]["outcome"] == "failed"
    assert results["wrong"]["last_lines"][-1] == "ValueError: an unknown shape"
    assert results["gone"]["status"] == -signal.SIGABRT
    assert "none: out of memory" in capsys.readouterr().out


@pytest.mark.long
def test_an_interrupted_part_continues_with_the_next_case(write: Write) -> None:
    file = write({"first": ("finish", 60), "slow": ("hang", 60)})
    command = [sys.executable, "-m", "benchmarks.gpu.drive", *words_for(file)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    note = file.parent / "slow"
    while not note.exists() or not note.read_text():
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    process.wait()
    with pytest.raises(ProcessLookupError):  # its child process has ended too
        os.kill(int(note.read_text()), 0)
    assert list(read_results(file)) == ["first"]
    file.write_text(file.read_text().replace("gpu_faults.hang", "gpu_faults.finish"))
    assert main(words_for(file)) == 0
    outcomes = {name: row["outcome"] for name, row in read_results(file).items()}
    assert outcomes == {"first": "finished", "slow": "finished"}
    assert (file.parent / "first").read_text() == "ran\n"
    assert main(words_for(file, "case=first")) == 0  # a case that is named runs again
    assert (file.parent / "first").read_text() == "ran\nran\n"


@pytest.mark.long
def test_cases_without_enough_time_are_listed_and_not_started(write, capsys):
    file = write({"long": ("finish", LONG_SECONDS), "short": ("finish", 30)})
    assert main(words_for(file, "minutes=2")) == 1
    assert list(read_results(file)) == ["short"]
    assert "not enough time for: long\n" in capsys.readouterr().out


@pytest.mark.long
def test_a_timeout_is_a_result(write: Write) -> None:
    file = write({"slow": ("hang", 1)})
    start = time.monotonic()
    assert main(words_for(file)) == 1
    assert read_results(file)["slow"]["outcome"] == "timed out"
    assert time.monotonic() - start < LONG_SECONDS / 10


@pytest.mark.long
def test_a_case_interrupted_by_the_end_of_the_part_has_no_result(write, capsys):
    file = write({"slow": ("hang", 2)})
    assert main(words_for(file, "minutes=0.05")) == 1
    assert not (file.parent / "T.json").exists()
    assert "not enough time for: slow" in capsys.readouterr().out


def test_a_case_does_not_start_on_a_device_with_too_little_memory(write, monkeypatch, capsys):
    file = write({"large": ("finish", 60)})
    large = GpuCase(name="large", part="T", runs="", seconds=1, least_gib=100, settings={})
    monkeypatch.setattr(drive, "read_cases", lambda *_, **__: [large])
    monkeypatch.setattr(drive, "detect_device", lambda: {"name": "a small GPU", "gib": 79.0})
    assert main(words_for(file)) == 0
    assert capsys.readouterr().out == "large: not started, needs 100 GiB\n"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["part=Z"], "part: there is no part 'Z'"),
        (["part=A", "case=nothing"], "case: part A has no case 'nothing'"),
        (["part=A", "hours=1"], "hours: unknown argument"),
        (["part=A", "minutes=soon"], "minutes: 'soon' is not a number"),
        (["part=A"], "scale: torch detects no GPU"),
    ],
)
def test_wrong_arguments_are_errors(words, problem, monkeypatch):
    monkeypatch.setattr(drive, "detect_device", lambda: CPU_DEVICE)
    with pytest.raises(RecipeError) as error:
        main(words)
    assert str(error.value).startswith(problem)


@pytest.mark.long
def test_every_case_has_full_size_and_fits_into_a_call() -> None:
    cases = read_cases()
    assert {case.part for case in cases} == {"A", "B", "C", "D", "E"}
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert case.seconds <= 60 * drive.MINUTES
        if "scale=full" in case.settings.get("words", []):
            assert compose_case(case.settings["words"]).scale.name == "full"
        else:
            assert case.runs.startswith("benchmarks.gpu.checks")
    assert [case.name for case in select_cases("A", ["peaks"], cases)] == ["peaks"]
