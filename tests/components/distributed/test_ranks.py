"""The processes that tests share: what one test leaves behind must not reach the next."""

import inspect
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.components.distributed.ranks import MAXIMUM_THREADS, Ranks


def get_pid() -> int:
    return os.getpid()


def sleep(seconds: float) -> str:
    time.sleep(seconds)
    return "slept"


def leave_rank_1_waiting() -> None:
    if dist.get_rank() == 0:
        raise ValueError("rank 0 fails")
    dist.barrier()


def die() -> None:
    if dist.get_rank() == 1:
        os._exit(3)
    dist.barrier()


def answer_twice() -> str:
    caller = inspect.currentframe()
    assert caller
    assert caller.f_back
    served = caller.f_back.f_locals
    served["pipe"].send((served["call"], True, "first"))
    return "second"


def make_groups(count: int) -> None:
    for _ in range(count):
        dist.new_group()


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    with Ranks(2) as two:
        yield two


def test_quiet_processes_stay(ranks: Ranks) -> None:
    assert ranks(get_pid) == ranks(get_pid)


def test_after_a_timeout_the_next_call_gets_its_own_answer(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks(get_pid)
    with monkeypatch.context() as patch:
        patch.setattr(ranks, "timeout_seconds", 0.1)
        with pytest.raises(AssertionError, match=r"ranks \[0, 1\] hang"):
            ranks(sleep, 1)
    time.sleep(1)  # by now the ranks would have answered
    assert len({*ranks(get_pid)} - {"slept"}) == 2


@pytest.mark.parametrize(
    ("case", "message"),
    [(leave_rank_1_waiting, "rank 0 fails"), (die, "rank 1 died")],
)
def test_a_failure_ends_the_call_at_once_and_replaces_all_processes(
    ranks: Ranks, case: Callable[[], None], message: str
) -> None:
    before = ranks(get_pid)
    with pytest.raises(AssertionError, match=message):
        ranks(case)
    assert not {*before} & {*ranks(get_pid)}


def test_an_answer_to_an_earlier_call_is_never_returned(ranks: Ranks) -> None:
    assert ranks(answer_twice) == ["first"] * 2
    with pytest.raises(AssertionError, match="an answer to call 1 instead of 2"):
        ranks(get_pid)
    assert ranks(sleep, 0) == ["slept"] * 2


def test_an_interrupted_call_replaces_the_processes(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ranks(get_pid)
    with monkeypatch.context() as patch:
        patch.setattr(ranks, "_receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ranks(sleep, 0)
    assert not {*before} & {*ranks(get_pid)}


def test_processes_with_many_threads_are_replaced(ranks: Ranks) -> None:
    before = ranks(get_pid)
    ranks(make_groups, MAXIMUM_THREADS)
    assert ranks.count_threads() == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in before)
    ranks(get_pid)
    assert max(ranks.count_threads()) < MAXIMUM_THREADS


def interrupt() -> None:
    raise KeyboardInterrupt
