"""What data preparation asks of a tokenizer, and texts too long to encode at once.

While it encodes, a tokenizer holds 30 (SentencePiece) to 100 (`tokenizers`) bytes a character.
A part ends before a single space between ASCII letters or digits: no normalisation changes
these, and the pieces of our families may begin with a space but not hold one further on. Only
where a stretch as long as half a part has no such place is a text cut elsewhere, and the ids
around the cut may differ from the whole's.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

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


def check_vocab_size(path: Path, found: int, asked: int) -> None:
    """Refuse a tokenizer's file with another number of pieces than the recipe asks for.

    Raises:
        RecipeError: that is so.
    """
    if found != asked:
        problem = f"has {found:,} pieces, tokenizer.vocab_size is {asked:,}"
        raise RecipeError(str(path), problem, REBUILD)


def too_few_pieces(found: int, asked: int) -> RecipeError:
    """Report that the training text supports no vocabulary of the size that is asked for."""
    return RecipeError(
        "tokenizer.vocab_size",
        f"{asked:,} pieces, but the text supports at most {found:,}",
        f"set tokenizer.vocab_size={found}, or raise data.tokenizer_sample_bytes",
    )


class Tokenizer(Protocol):
    """Settings from a recipe; then trained into a folder, or loaded from it, and used."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def eod_id(self) -> int: ...

    def settings(self) -> dict[str, Any]:
        """Return the settings as the recipe wrote them, for manifests and hashes."""
        ...

    def train(self, texts: Iterable[str], folder: Path) -> None:
        """Write the tokenizer's files into ``folder``, then use it."""
        ...

    def load(self, folder: Path) -> None: ...
    def encode(self, texts: Sequence[str]) -> list[Ids]: ...
    def decode(self, ids: Iterable[int]) -> str: ...
