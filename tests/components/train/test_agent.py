"""Which of several failed ranks was the first, from what torchrun keeps of each."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ErrorHandler, ProcessFailure

from components.errors import RecipeError
from components.fault_tolerance.failures import MENDABLE, error_file, recipe_error
from components.train.agent import (
    _raised,
    _remove_old_logs,
    describe_failure,
    first_failure,
    run_ranks,
)

SIGKILL, SIGTERM, SIGSEGV = 9, 15, 11
NOW = int(time.time())


@pytest.fixture
def raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Raised":
    return Raised(tmp_path, monkeypatch)


class Raised:
    """A rank that raised: torch's own handler writes its error file."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch

    def __call__(self, rank: int, error: Exception, *, at: float) -> ProcessFailure:
        file = self.folder / f"{rank}.json"
        self.monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
        try:
            raise error
        except type(error):
            ErrorHandler().record_exception(error)
        tree = json.loads(file.read_text())
        tree["message"]["extraInfo"]["timestamp"] = str(int(at))
        file.write_text(json.dumps(tree))
        os.utime(file, (at, at))
        return ProcessFailure(local_rank=rank, pid=rank, exitcode=1, error_file=str(file))


def ended(rank: int, exitcode: int, *, at: float) -> ProcessFailure:
    """A rank that left no error file; torchrun notes the second in which it looked."""
    failure = ProcessFailure(local_rank=rank, pid=rank, exitcode=exitcode, error_file="<N/A>")
    failure.timestamp = int(at)
    return failure


def test_the_earliest_error_is_the_cause(raised: Raised) -> None:
    lost = RuntimeError("Connection closed by peer")
    failures = {0: raised(0, lost, at=NOW + 0.4), 1: raised(1, KeyError("cause"), at=NOW + 0.2)}
    assert min(failures, key=lambda rank: failures[rank].timestamp) == 0  # torchrun's choice
    rank, failure = first_failure(failures)
    assert rank == 1
    found = describe_failure(failure)
    assert found["message"] == "KeyError: 'cause'"
    assert found["traceback"].startswith("Traceback")


def test_a_killed_rank_comes_before_ranks_that_lost_it(raised: Raised) -> None:
    lost = RuntimeError("Connection closed by peer")
    failures = {0: raised(0, lost, at=NOW + 0.97), 1: ended(1, -SIGKILL, at=NOW + 1.1)}
    rank, failure = first_failure(failures)
    assert rank == 1
    assert describe_failure(failure) == {"message": "ended by SIGKILL", "traceback": ""}


def test_ranks_that_the_agent_ended_are_last(raised: Raised) -> None:
    cause = raised(2, ValueError("cause"), at=NOW)
    for exitcode, later in ((-SIGTERM, 0.1), (-SIGKILL, 10.2)):
        assert first_failure({0: ended(0, exitcode, at=NOW + later), 2: cause})[0] == 2
    assert describe_failure(ended(0, 3, at=NOW))["message"] == "ended with exit status 3"
    assert describe_failure(ended(0, -SIGSEGV, at=NOW))["message"] == "ended by SIGSEGV"


def test_a_truncated_error_file_is_read(raised: Raised, tmp_path) -> None:
    raised(1, RecipeError("/r", "cannot be written", "make room"), at=NOW)
    file = (tmp_path / "1.json").rename(error_file(tmp_path, 1))
    file.write_bytes(file.read_bytes()[:90])
    (tmp_path / "x_y" / "attempt_0").mkdir(parents=True)
    os.utime(tmp_path / "x_y" / "attempt_0", (NOW - 9, NOW - 9))
    ((rank, failure),) = _raised(tmp_path).items()
    assert (rank, describe_failure(failure)["traceback"]) == (1, "")
    error = recipe_error(describe_failure(failure)["message"])
    assert error is not None
    assert (error.path, error.problem) == ("/r", "cannot be written")


@pytest.mark.long
def test_the_exit_status_reports_an_error_that_cannot_be_written(tmp_path, capfd, monkeypatch):
    """A full disk leaves a rank's error file empty, and takes none of the agent's."""
    monkeypatch.setattr("components.train.agent.logging.disable", lambda level: None)
    # This rank needs nothing of what ranks that train are forked with.
    monkeypatch.setattr("components.train.agent.set_forkserver_preload", lambda names: None)
    (tmp_path / ".first_failure.json").mkdir()
    program = tmp_path / "program.py"
    program.write_text(
        "import sys; from pathlib import Path; "
        f"(Path(sys.argv[1]) / 'error-0.json').touch(); sys.exit({MENDABLE})"
    )
    assert run_ranks(tmp_path, 1, 0, [str(program), str(tmp_path)]) == MENDABLE
    assert "first_failure.json: cannot be written: Is a directory" in capfd.readouterr().err
    assert not (tmp_path / "first_failure.json").exists()


def test_ranks_that_end_themselves_end_the_launch(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("import sys\n\nsys.exit()\n")
    command = ["-m", "components.train.agent", str(tmp_path / "logs"), "2", "0", str(file)]
    assert subprocess.run([sys.executable, *command], timeout=600).returncode == 0


def test_log_folders_of_earlier_starts_are_removed_but_for_the_newest(tmp_path: Path) -> None:
    for place, name in enumerate(("aa_1", "bb_2", "cc_3")):
        (tmp_path / name / "attempt_0").mkdir(parents=True)
        os.utime(tmp_path / name, (place, place))
    (tmp_path / "error_1.json").touch()
    assert _raised(tmp_path) == _raised(tmp_path / "removed") == {}
    _remove_old_logs(tmp_path)
    assert {one.name for one in tmp_path.iterdir()} == {"cc_3", "error_1.json"}
