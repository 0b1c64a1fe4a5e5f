"""What every rank does for itself and all answer for: one failure is everyone's."""

from collections.abc import Callable
from typing import TypeVar, cast

import torch.distributed as dist

from components.errors import RecipeError

T = TypeVar("T")


def together(task: Callable[[], T], group: dist.ProcessGroup | None = None) -> list[T]:
    """Do ``task`` on every rank, and return on all what each of them got, in their order.

    Another error than a RecipeError stays with its rank.

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
    for one in everyones:
        if isinstance(one, RecipeError):
            raise one
    return cast("list[T]", everyones)


def by_first(task: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Do ``task`` on the first rank alone; what it got, or its RecipeError, is all ranks'."""
    return cast("T", together(lambda: task() if dist.get_rank(group) == 0 else None, group)[0])
