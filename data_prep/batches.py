"""Work in batches of bounded size."""

from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

Item = TypeVar("Item", bound=Sized)


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Close a batch as soon as the lengths in it reach ``size``; each item adds one of its own.

    So a batch of empty items ends, too. No batch is empty.
    """
    batch: list[Item] = []
    total = 0
    for item in items:
        batch.append(item)
        total += len(item) + 1
        if total >= size:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch
