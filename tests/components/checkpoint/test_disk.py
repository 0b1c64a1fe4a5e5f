"""What a file system refuses is said in words; one that is away is waited for."""

from pathlib import Path

import pytest

from components.checkpoint.disk import GONE, REMEDIES, check_room, patiently
from components.errors import RecipeError

FILE = Path("runs/x/checkpoints")


def failing(number: int, times: int) -> tuple[list[int], object]:
    calls: list[int] = []

    def task() -> str:
        calls.append(number)
        if len(calls) <= times:
            raise OSError(number, "as the kernel calls it")
        return "done"

    return calls, task


@pytest.mark.parametrize("number", sorted(set(REMEDIES) - GONE))
def test_what_the_user_has_to_mend_is_said_at_once(number: int) -> None:
    calls, task = failing(number, times=1)
    with pytest.raises(RecipeError, match="cannot be written: as the kernel") as caught:
        patiently(FILE, task, seconds=60.0)  # type: ignore[arg-type]  # it is a callable
    assert calls == [number]
    assert str(FILE) in str(caught.value)
    assert f"{REMEDIES[number]}, then resume" in caught.value.remedy


@pytest.mark.parametrize("number", sorted(GONE))
def test_a_file_system_that_comes_back_is_waited_for(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("components.checkpoint.disk.PAUSE_SECONDS", 0.001)
    calls, task = failing(number, times=3)
    assert patiently(FILE, task, seconds=60.0) == "done"  # type: ignore[arg-type]  # as above
    assert len(calls) == 4
    with pytest.raises(RecipeError, match="cannot be written"):
        patiently(FILE, failing(number, times=99)[1], seconds=0.01)  # type: ignore[arg-type]  # as above


def test_a_checkpoint_that_would_not_fit_is_not_begun(tmp_path: Path) -> None:
    check_room(tmp_path, needed_bytes=1, files=1)
    with pytest.raises(RecipeError, match=r"has 1_000_000_000_000_000_000 bytes, but .* free"):
        check_room(tmp_path, needed_bytes=10**18, files=1)
    with pytest.raises(RecipeError, match=r"has 1000000000000 files, but .* inodes are free"):
        check_room(tmp_path, needed_bytes=1, files=10**12)
