"""What every rank does for itself and all answer for: one failure is everyone's."""

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from components.errors import RecipeError

T = TypeVar("T")


def together(task: Callable[[], T]) -> list[T]:
    """Do ``task`` on every rank and return what each of them got, in the order of ranks.

    It has to be small: every rank receives all of it. An error that no user can mend is a bug,
    and stays with its rank, whose end the launcher notices.

    Raises:
        RecipeError: that of the first rank with one, on all ranks. Raised by it alone, the
            others would wait for it in their next collective.
    """
    mine: T | RecipeError
    try:
        mine = task()
    except RecipeError as error:
        mine = error
    everyones = [mine] * dist.get_world_size()
    dist.all_gather_object(everyones, mine)
    got = []
    for one in everyones:
        if isinstance(one, RecipeError):
            raise one
        got.append(one)
    return got
