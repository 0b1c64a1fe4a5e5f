"""What both families of tokenizers share, and texts too long to encode at once.

While it encodes, a tokenizer holds 30 (SentencePiece) to 100 (`tokenizers`) bytes a character.
A part ends before a single space between ASCII letters or digits: no normalisation changes
these, and the pieces of our families may begin with a space but not hold one further on. Only
where a stretch as long as half a part has no such place is a text cut elsewhere, and the ids
around the cut may differ from the whole's.
"""

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from components.data.files import REBUILD
from components.errors import RecipeError

Ids = np.ndarray[tuple[int], np.dtype[np.int32]]
Encode = Callable[[list[str]], list[Ids]]

PART_CHARACTERS = 1 << 20
PLACE = re.compile(r"(?<=[A-Za-z0-9]) (?=[A-Za-z0-9])")


def encode_in_parts(texts: Sequence[str], encode: Encode, *, drops_space: bool) -> list[Ids]:
    """Encode texts with ``encode``, all at once, or part by part if one of them is long.

    Where ``encode`` puts a space before each text, ``drops_space``: the one that begins a part
    after the first is left out.
    """
    if max(map(len, texts), default=0) <= PART_CHARACTERS:
        return encode(list(texts))
    joined = []
    for text in texts:
        first, *later = cut(text, PART_CHARACTERS)
        if drops_space:
            later = [part.removeprefix(" ") for part in later]
        joined.append(np.concatenate([encode([part])[0] for part in (first, *later)]))
    return joined


def cut(text: str, part_characters: int) -> Iterator[str]:
    """Cut a text into parts of about ``part_characters`` at most; joined they are the text."""
    start = 0
    while len(text) - start > part_characters:
        end = start + part_characters
        place = PLACE.search(text, end - part_characters // 2, end)
        end = place.start() if place else end
        yield text[start:end]
        start = end
    yield text[start:]


class Tokenizer(ABC):
    """Settings from a recipe; then trained into a folder, or loaded from it, and used."""

    _settings: dict[str, Any]

    def _keep(self, arguments: Mapping[str, Any]) -> None:
        """Keep what a constructor was given, its ``locals()``, in this order."""
        settings = {name: value for name, value in arguments.items() if name != "self"}
        self._settings = copy.deepcopy(settings)

    def settings(self) -> dict[str, Any]:
        """Return the settings as the recipe wrote them, for manifests and hashes."""
        return copy.deepcopy(self._settings)

    @property
    def vocab_size(self) -> int:
        return int(self._settings["vocab_size"])

    @property
    @abstractmethod
    def eod_id(self) -> int: ...

    @abstractmethod
    def train(self, texts: Iterable[str], folder: Path) -> None:
        """Write the tokenizer's file into ``folder``, then use it."""

    @abstractmethod
    def load(self, folder: Path) -> None: ...
    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[Ids]: ...
    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str: ...

    def _check_size(self, path: Path, found: int) -> None:
        if found != self.vocab_size:
            problem = f"has {found:,} pieces, tokenizer.vocab_size is {self.vocab_size:,}"
            raise RecipeError(str(path), problem, REBUILD)

    def _too_few(self, found: int) -> RecipeError:
        problem = f"{self.vocab_size:,} pieces, but the text supports at most {found:,}"
        remedy = (
            f"set tokenizer.vocab_size={found}, or train on more text: name more files, and "
        )
        remedy += "raise data.tokenizer_sample_bytes if it is a number"
        return RecipeError("tokenizer.vocab_size", problem, remedy)
