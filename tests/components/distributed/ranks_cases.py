"""Ranks that are slow, die, fail, or answer twice."""

import inspect
import os
import time

import torch.distributed as dist


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
