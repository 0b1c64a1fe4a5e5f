"""What a selective recomputation keeps beside torch's own record of operators.

Torch's record finds a result by its operator. It cannot keep what is written into memory that
somebody else made, as collectives and products of single experts are: these go through `kept`.
And it keeps each result of an operator or none: `passing_on` leaves out what nobody reads.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from components.torch_internals import selective
from components.torch_internals.operators import storage_key

Result = TypeVar("Result", Tensor, tuple[Tensor, ...])


class Record:
    """Results of one forward pass through a recomputed module, in their order."""

    def __init__(self, of_torch: Mapping[Any, Any]) -> None:
        self._of_torch = of_torch
        self._results: list[Any] = []
        self._next = 0

    def add(self, result: Result) -> None:
        one = isinstance(result, Tensor)
        tensors = [result] if one else result
        self._results.append((one, [cast("Tensor", part).detach() for part in tensors]))

    def forget(self, result: Tensor) -> None:
        """Free what is kept of ``result``, if it is one of the newest; its shape stays."""
        selective.forget(self._of_torch, result)
        _, newest = self._results[-1] if self._results else (True, [])
        for place, part in enumerate(newest):
            if isinstance(part, Tensor) and storage_key(part) == storage_key(result):
                newest[place] = selective.Shape.of(part)

    def take(self) -> Any:
        """Return the next result; what is taken is not kept any longer."""
        one, tensors = self._results[self._next]
        self._results[self._next] = None
        self._next += 1
        with selective.unseen():
            found = tuple(
                part.empty() if isinstance(part, selective.Shape) else part for part in tensors
            )
        return found[0] if one else found

    @contextmanager
    def written(self, caching: Any) -> Iterator[None]:
        """Keep what is computed inside, beside torch's own context."""
        with _put(_here.written, self), caching:
            yield

    @contextmanager
    def read(self, cached: Any) -> Iterator[None]:
        """Give back what was kept, beside torch's own context."""
        self._next = 0
        with _put(_here.read, self), cached:
            yield


class _Here(threading.local):
    """The records that are open in a thread: backward passes may have their own."""

    def __init__(self) -> None:
        self.written: list[Record] = []
        self.read: list[Record] = []


_here = _Here()


@contextmanager
def _put(stack: list[Record], record: Record) -> Iterator[None]:
    stack.append(record)
    try:
        yield
    finally:
        stack.pop()


def is_given_back() -> bool:
    """Whether what goes through `kept` is not computed now, but given back."""
    return not torch.compiler.is_compiling() and bool(_here.read)


def kept(compute: Callable[[], Result]) -> Result:
    """Compute once: a selective recomputation is given the first result again.

    ``compute`` is not differentiated.
    """
    if is_given_back():
        return cast("Result", _here.read[-1].take())
    if torch.compiler.is_compiling() or not _here.written:
        return compute()
    with selective.unseen():
        result = compute()
        _here.written[-1].add(result)
    return result


def passing_on(result: Tensor) -> Tensor:
    """Say that what is computed again reads no number of ``result``, and return it.

    So it is with what a layer adds to its input, a mask of dropout too, and with what goes into
    a collective whose result is kept.
    """
    if not torch.compiler.is_compiling() and _here.written:
        _here.written[-1].forget(result)
    return result
