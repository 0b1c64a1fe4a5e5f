"""Who holds a run folder: the command with its ranks, or the first rank of a job."""

from pathlib import Path

import pytest

from components.errors import RecipeError
from components.run import writer_lock
from components.run.writer_lock import SHARES, check_not_trained, rank_holds, train_alone


def test_what_is_trained_here_is_not_handed_to_a_scheduler(tmp_path: Path) -> None:
    check_not_trained(tmp_path, "run")
    assert not list(tmp_path.iterdir())
    with (
        train_alone(tmp_path, "run"),
        pytest.raises(RecipeError, match=r"run: \S+ is being trained by process"),
    ):
        check_not_trained(tmp_path, "run")
    check_not_trained(tmp_path, "run")


def test_ranks_of_the_command_that_holds_the_run_are_let_in(tmp_path: Path) -> None:
    with (
        train_alone(tmp_path, "run"),
        rank_holds(tmp_path, {SHARES: "1", "RANK": "0"}),
        rank_holds(tmp_path, {SHARES: "1", "RANK": "1"}),
    ):
        pass


def test_the_first_rank_of_a_job_holds_the_run_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_lock, "DEAD_NODE_SECONDS", 0.2)
    with (
        rank_holds(tmp_path, {"RANK": "0"}),
        rank_holds(tmp_path, {"RANK": "1"}),
        pytest.raises(RecipeError, match="is being trained by process"),
        rank_holds(tmp_path, {"RANK": "0"}),
    ):
        pass


def test_a_folder_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*words: object) -> None:
        raise OSError(30, "Read-only file system", str(tmp_path / "writer.lock"))

    monkeypatch.setattr("components.run.writer_lock.os.open", read_only)
    with (
        pytest.raises(RecipeError, match=r"writer\.lock: cannot be written: Read-only"),
        train_alone(tmp_path, "run"),
    ):
        pass
