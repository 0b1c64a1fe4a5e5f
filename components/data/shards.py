"""The token files of a source as one sequence of tokens, few of them open at a time."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from components.data.token_file import TokenFileRecord, Tokens, open_token_file

MOST_OPEN = 64  # of all sources together: far below the 1,024 that a process may usually have


class OpenFiles:
    """Map token files on first use; beyond ``most_open`` the one used longest ago is closed.

    A copy sent to another process carries paths, not tokens.
    """

    def __init__(self, *, folder: Path, most_open: int) -> None:
        self._folder = folder
        self._most_open = most_open
        self._maps: OrderedDict[TokenFileRecord, Tokens] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": OrderedDict()}

    def __len__(self) -> int:
        return len(self._maps)

    def tokens(self, record: TokenFileRecord) -> Tokens:
        """Return the mapped tokens; keep no view of them.

        Raises:
            RecipeError: the file is missing or has another size than recorded.
        """
        if record not in self._maps:
            while len(self._maps) >= self._most_open:
                self._maps.popitem(last=False)
            self._maps[record] = open_token_file(self._folder, record)
        self._maps.move_to_end(record)
        return self._maps[record]


class ShardedTokens:
    """Read any stretch of the concatenated shards; a look-up takes O(log shards)."""

    def __init__(self, *, records: Sequence[TokenFileRecord], files: OpenFiles) -> None:
        self._records = tuple(records)
        self._ends = list(accumulate(record.tokens for record in self._records))
        self._files = files

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Copy the tokens from ``start`` to ``stop``, or to the end if that comes before."""
        parts: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
        stop = min(stop, len(self))
        shard = bisect_right(self._ends, start)
        while start < stop:
            first = self._ends[shard] - self._records[shard].tokens
            tokens = self._files.tokens(self._records[shard])
            parts.append(tokens[start - first : stop - first].astype(np.int64))
            start += len(parts[-1])
            shard += 1
        return np.concatenate(parts)
