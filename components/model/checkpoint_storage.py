"""Results that selective recomputation stores in addition to torch's record of operators.

Torch's record finds a result by its operator, except results in preallocated memory (of
collectives and the products of single experts): `compute_once` stores these. Torch stores all
results
of an operator or none: `pass_through` drops a result that the recomputation does not read.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from components.torch_internals import selective
from components.torch_internals.operators import storage_key

SavedResult = TypeVar("SavedResult", Tensor, tuple[Tensor, ...])


class SavedTensors:
    """Saved results of one forward pass through a recomputed module, in call order."""

    def __init__(self, of_torch: Mapping[Any, Any]) -> None:
        self._of_torch = of_torch
        self._results: list[Any] = []
        self._next = 0

    def add_result(self, result: SavedResult) -> None:
        is_tensor = isinstance(result, Tensor)
        tensors = [result] if is_tensor else result
        self._results.append((is_tensor, [cast("Tensor", part).detach() for part in tensors]))

    def free_result(self, result: Tensor) -> None:
        """Free the copy of ``result``, if it is one of the newest; keep only its shape."""
        selective.free_record(self._of_torch, result)
        _, newest = self._results[-1] if self._results else (True, [])
        for place, part in enumerate(newest):
            if isinstance(part, Tensor) and storage_key(part) == storage_key(result):
                newest[place] = selective.Shape.from_tensor(part)

    def take_result(self) -> Any:
        """Return the next result and release it."""
        is_tensor, tensors = self._results[self._next]
        self._results[self._next] = None
        self._next += 1
        with selective.hide_operators():
            results = tuple(
                part.create_empty() if isinstance(part, selective.Shape) else part
                for part in tensors
            )
        return results[0] if is_tensor else results

    @contextmanager
    def record_results(self, caching: Any) -> Iterator[None]:
        """Record results computed within this context, in addition to torch's context."""
        with _put(_here.written, self), caching:
            yield

    @contextmanager
    def replay_results(self, cached: Any) -> Iterator[None]:
        """Return recorded results within this context, in addition to torch's context."""
        self._next = 0
        with _put(_here.read, self), cached:
            yield


class _Here(threading.local):
    """Records that are open in a thread: backward passes may run in another thread."""

    def __init__(self) -> None:
        self.written: list[SavedTensors] = []
        self.read: list[SavedTensors] = []


_here = _Here()


@contextmanager
def _put(stack: list[SavedTensors], record: SavedTensors) -> Iterator[None]:
    stack.append(record)
    try:
        yield
    finally:
        stack.pop()


def is_given_back() -> bool:
    """Return whether `compute_once` returns a recorded result now instead of computing it."""
    return not torch.compiler.is_compiling() and bool(_here.read)


def compute_once(compute: Callable[[], SavedResult]) -> SavedResult:
    """Compute a result once, without gradients; a selective recomputation reads it."""
    if is_given_back():
        return cast("SavedResult", _here.read[-1].take_result())
    if torch.compiler.is_compiling() or not _here.written:
        return compute()
    with selective.hide_operators():
        result = compute()
        _here.written[-1].add_result(result)
    return result


def pass_through(result: Tensor) -> Tensor:
    """Mark that the recomputation reads no values of ``result``, and return ``result``.

    Examples: what a layer adds to its input, a dropout mask, the input of a stored collective.
    """
    if not torch.compiler.is_compiling() and _here.written:
        _here.written[-1].free_result(result)
    return result
