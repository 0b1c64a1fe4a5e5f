"""What every rank does for itself and all answer for: one failure is everyone's."""

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from components.errors import RecipeError

T = TypeVar("T")


def together(task: Callable[[], T], group: dist.ProcessGroup | None = None) -> list[T]:
    """Do ``task`` on every rank and return what each of them got, in the order of ranks.

    Every rank receives all of it. Another error than a RecipeError stays with its rank.

    Raises:
        RecipeError: that of the first rank with one, on all ranks: else they would wait for it.
    """
    mine: T | RecipeError
    try:
        mine = task()
    except RecipeError as error:
        mine = error
    everyones = [mine] * dist.get_world_size(group)
    dist.all_gather_object(everyones, mine, group)
    got = []
    for one in everyones:
        if isinstance(one, RecipeError):
            raise one
        got.append(one)
    return got


def by_first(task: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Do ``task`` on the first rank alone, and return on all ranks what it got.

    Raises:
        RecipeError: that of the first rank, on all ranks.
    """
    first, *_ = together(lambda: task() if dist.get_rank(group) == 0 else None, group)
    return first  # type: ignore[return-value]  # the first rank's is no None of ours
