"""The time budget, on a suite of three files in its own process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.time_budget import ROOT

TESTS = ["test_a.py::test_it[0]", "test_a.py::test_it[1]", "test_b.py::test_it[0]"]
TESTS += ["test_b.py::test_it[1]", "test_c.py::test_it[0]", "test_c.py::test_it[1]"]
TEXT = """
import os, time, pytest
from pathlib import Path
@pytest.fixture
def left_behind():
    yield
    Path("torn_down").touch()
@pytest.mark.parametrize("number", range(2))
def test_it(number, left_behind):
    with Path("ran").open("a") as file:
        file.write(f"{Path(__file__).name}::test_it[{number}]" + chr(10))
    time.sleep(float(os.environ["SLEEP"]))
    assert "FAIL" not in os.environ
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text(TEXT)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib")
    write_record(tmp_path, [])
    return tmp_path


def write_record(suite: Path, names: list[str]) -> None:
    (suite / "kochbuch").mkdir(exist_ok=True)
    (suite / "kochbuch" / "not_run.tiny").write_text("".join(f"{name}\n" for name in names))


def read_record(suite: Path) -> list[str]:
    return (suite / "kochbuch" / "not_run.tiny").read_text().splitlines()


def read_ran(suite: Path) -> list[str]:
    path = suite / "ran"
    return path.read_text().splitlines() if path.exists() else []


def run(suite: Path, *words: str, sleep: float = 0, status: int = 0, **variables: str) -> str:
    """Run the suite and return what pytest prints."""
    (suite / "ran").unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.time_budget", *words, str(suite)],
        cwd=suite,
        env=os.environ
        | {"XDG_CACHE_HOME": str(suite), "PYTHONPATH": str(ROOT), "SLEEP": str(sleep)}
        | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def words(budget: float, grace: float = 600) -> list[str]:
    return [f"--time-budget={budget}", f"--time-grace={grace}", "--time-record=tiny"]


def test_with_a_budget_of_zero_no_test_starts_and_all_are_listed(suite: Path) -> None:
    printed = run(suite, *words(0))
    assert read_ran(suite) == []
    assert all(f"not started: {name}" in printed for name in TESTS)
    assert read_record(suite) == TESTS


def test_without_a_budget_nothing_changes(suite: Path) -> None:
    write_record(suite, TESTS[4:])
    run(suite)
    assert read_ran(suite) == TESTS
    assert read_record(suite) == TESTS[4:]


def test_recorded_tests_run_first_also_within_a_file(suite: Path) -> None:
    write_record(suite, [TESTS[3], TESTS[5]])
    assert "did not run" not in run(suite, *words(600))
    assert read_ran(suite) == [TESTS[n] for n in (3, 2, 5, 4, 0, 1)]
    assert read_record(suite) == []


@pytest.mark.long
def test_a_test_past_the_grace_period_is_interrupted_and_torn_down(suite: Path) -> None:
    printed = run(suite, *words(20, 0), sleep=600)
    assert read_ran(suite) == TESTS[:1]
    assert f"interrupted: {TESTS[0]}" in printed
    assert (suite / "torn_down").exists()
    assert read_record(suite) == [*TESTS[1:], TESTS[0]]  # the next run starts with others


def test_a_failure_before_the_end_still_fails_and_is_not_recorded(suite: Path) -> None:
    run(suite, *words(600), status=1, FAIL="1")
    assert read_record(suite) == []


@pytest.mark.long
def test_workers_share_the_order_and_the_record(suite: Path) -> None:
    parallel = ("-p", "xdist", "-n", "2", "--dist", "loadfile")
    printed = run(suite, *parallel, *words(0))
    assert "6 tests did not run within the budget" in printed
    assert sorted(read_record(suite)) == TESTS
    write_record(suite, [TESTS[4]])
    run(suite, *parallel, *words(600))
    assert sorted(read_ran(suite)) == TESTS
    assert read_ran(suite).index(TESTS[4]) < read_ran(suite).index(TESTS[2])  # one worker's
    assert read_record(suite) == []


@pytest.mark.long
def test_without_a_record_the_files_are_rotated(suite, monkeypatch):
    (suite / "kochbuch" / "not_run.tiny").unlink()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True)
    start = int(commit.stdout or b"0", 16) % 3
    run(suite, *words(600))
    assert read_ran(suite) == TESTS[2 * start :] + TESTS[: 2 * start]
