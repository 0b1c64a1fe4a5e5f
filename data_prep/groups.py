"""Groups of documents that match, directly or through others: union-find on arrays."""

from typing import Any

import numpy as np

Indices = np.ndarray[tuple[int], np.dtype[np.int64]]


class Groups:
    """Let each document point at an earlier one of its group; the group's first is its own.

    8 bytes a document. All pairs of a call are joined at once; the groups are the same whatever
    the order of pairs and calls.
    """

    def __init__(self, documents: int) -> None:
        self._earlier = np.arange(documents)

    def first(self, documents: Any) -> Indices:
        """Find the first document of each one's group; each pass halves the way to it."""
        while True:
            earlier: Indices = self._earlier[documents]
            further = self._earlier[earlier]
            if np.array_equal(earlier, further):
                return earlier
            self._earlier[documents] = further

    def join(self, left: Indices, right: Indices) -> None:
        """Join the groups of ``left[i]`` and ``right[i]``, for every i."""
        while len(left):
            left, right = self.first(left), self.first(right)
            apart = left != right
            left, right = left[apart], right[apart]
            # Of several pairs that would move one document, the earliest goal wins; the
            # others meet it in the next round.
            np.minimum.at(self._earlier, np.maximum(left, right), np.minimum(left, right))

    def repeated(self) -> Indices:
        """List the documents that are not the first of their group, in order."""
        everyone = np.arange(len(self._earlier))
        return np.flatnonzero(self.first(everyone) != everyone)
