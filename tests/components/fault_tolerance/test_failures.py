"""Which of several errors is no other rank's doing, and what is said of a world that ended."""

import json
import os
from pathlib import Path
from random import Random

import pytest

from components.errors import RecipeError
from components.fault_tolerance import failures


def leave(ranks: Path, rank: int, message: str, *, at: int) -> None:
    file = failures.error_file(ranks, rank)
    file.write_text(json.dumps({"message": {"message": message, "extraInfo": {}}}))
    os.utime(file, (at, at))


def test_the_earliest_own_error_comes_first(tmp_path: Path) -> None:
    leave(tmp_path, 0, "RuntimeError: Connection reset by peer", at=100)
    leave(tmp_path, 1, "Hang: step 7 ...; rank 1 on n1 waits for other ranks in x", at=101)
    leave(tmp_path, 3, "Hang: step 7 ...; rank 3 on n1 is in no collective", at=102)
    leave(tmp_path, 12, "KeyError: 'later'", at=103)
    errors = failures.read_errors(tmp_path)
    own = [(error.rank, error.is_own) for error in errors]
    assert own == [(3, True), (12, True), (0, False), (1, False)]
    why, silent = failures.describe_end(errors, ranks=13)
    assert why == "rank 3: Hang: step 7 ...; rank 3 on n1 is in no collective"
    assert silent == [2, 4, 5, 6, 7, 8, 9, 10, 11]


def test_earliest_of_thousands_of_errors_comes_first(tmp_path: Path) -> None:
    for rank in range(2_000):
        leave(tmp_path, rank, "RuntimeError: Connection closed by peer", at=rank)
    leave(tmp_path, 1_234, "KeyError: 'own'", at=9_999)
    errors = failures.read_errors(tmp_path)
    assert [error.rank for error in errors][:3] == [1_234, 0, 1]
    assert len(errors) == 2_000
    failures.forget_errors(tmp_path)
    assert failures.read_errors(tmp_path) == []


def test_a_silent_rank_comes_before_ranks_that_lost_it(tmp_path: Path) -> None:
    leave(tmp_path, 0, "RuntimeError: Connection closed by peer", at=100)
    errors = failures.read_errors(tmp_path)
    closed = "rank 0: RuntimeError: Connection closed by peer"
    silent = (f"rank 1, 2 left no message; {closed}", [1, 2])
    assert failures.describe_end(errors, ranks=3) == silent
    assert failures.describe_end(errors, ranks=1) == (closed, [])
    assert failures.describe_end([], ranks=2) == ("no rank reported an error", [0, 1])


TOLD = 'RecipeError: /r: cannot be written: "full" \\ \u00fc \U0001f600\n  make room'


@pytest.mark.parametrize(
    "message", [{"message": TOLD, "extraInfo": {"py_callstack": "T"}}, TOLD]
)
def test_a_cut_error_file_gives_the_message_up_to_there(tmp_path, message: object) -> None:
    whole, file = json.dumps({"message": message}).encode(), failures.error_file(tmp_path, 5)
    lengths = []
    for size in range(len(whole) + 1):
        file.write_bytes(whole[:size])
        (error,) = failures.read_errors(tmp_path)
        assert error.message == failures.CUT_SHORT or TOLD.startswith(error.message.rstrip("?"))
        lengths.append(0 if error.message == failures.CUT_SHORT else len(error.message))
    assert lengths == sorted(lengths)
    assert lengths[-1] == len(TOLD)
    assert max(lengths[: whole.index(b"RecipeError")]) == 0


def test_an_error_file_of_any_bytes_is_read(tmp_path: Path) -> None:
    random, file = Random(0), failures.error_file(tmp_path, 5)
    whole = json.dumps({"message": {"message": TOLD, "extraInfo": {}}}).encode()
    for _ in range(300):
        damaged = bytearray(random.randbytes(90) if random.random() < 0.3 else whole)
        for _ in range(random.randint(1, 4)):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        file.write_bytes(damaged)
        (error,) = failures.read_errors(tmp_path)
        error.message.encode()
        assert error.message


@pytest.mark.parametrize(
    "text",
    ["", "[]", "7", '{"message": {"mess', '{"message": {"message": []', '{"a": ' + "[" * 9**5],
)
def test_an_error_file_without_a_message_is_reported(tmp_path: Path, text: str) -> None:
    failures.error_file(tmp_path, 5).write_text(text)
    failures.error_file(tmp_path, 6).with_name("error-none.json").write_text("no rank's")
    failures.error_file(tmp_path, 7).mkdir()
    (error,) = failures.read_errors(tmp_path)
    assert (error.rank, error.message) == (5, failures.CUT_SHORT)
    failures.forget_errors(tmp_path)
    assert failures.read_errors(tmp_path) == []


def test_an_error_file_of_any_size_takes_bounded_memory(tmp_path: Path) -> None:
    leave(tmp_path, 0, "KeyError: " + "x" * 3_000_000, at=1)
    (error,) = failures.read_errors(tmp_path)
    assert error.message == "KeyError: " + "x" * (failures.MOST_MESSAGE - 10)


def test_an_error_file_that_is_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(failures.error_file(tmp_path, 5))
    (error,) = failures.read_errors(tmp_path)
    assert error.message.endswith("error-5.json is not a regular file")


def test_an_error_for_the_user_is_raised_instead_of_a_restart(tmp_path: Path) -> None:
    failures.raise_again(tmp_path)  # without any error
    error = RecipeError("a/b: c", "cannot be written: full", "make room")
    leave(tmp_path, 0, f"RecipeError: {error}", at=100)
    leave(tmp_path, 1, "RuntimeError: Connection reset by peer", at=99)
    with pytest.raises(RecipeError, match="cannot be written: full") as caught:
        failures.raise_again(tmp_path)
    assert (str(caught.value), caught.value.remedy) == (str(error), "make room")
    leave(tmp_path, 1, "ReplicasDifferError: in step 3", at=90)  # an own error, that came first
    failures.raise_again(tmp_path)


def test_idle_seconds_use_the_clock_of_the_file_system(tmp_path: Path) -> None:
    """The file server may be years behind this machine."""
    events = tmp_path / "events.jsonl"
    events.touch()
    os.utime(events, (130, 130))
    assert failures.seconds_between([], events) == 0
    for times, seconds in (((100, 110), 30), ((200, 200), 0)):
        for rank, at in enumerate(times):
            leave(tmp_path, rank, "KeyError: 1", at=at)
        assert failures.seconds_between(failures.read_errors(tmp_path), events) == seconds
