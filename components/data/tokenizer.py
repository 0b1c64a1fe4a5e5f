"""Base class of both tokenizer families, and encoding of long texts in parts.

While encoding, a tokenizer needs 30 (SentencePiece) to 100 (`tokenizers`) bytes of memory per
character, so a long text is encoded in parts. A part ends before a single space between ASCII
letters or digits. No normalization changes these characters, and a piece may start with a space
but contains none further on. If the second half of a part has no such place, the text is cut
elsewhere, and the ids around that cut may differ from the ids of the whole text.
"""

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from components.config.tokenizer_spec import TokenizerSpec
from components.data.files import REBUILD
from components.errors import RecipeError

Ids = np.ndarray[tuple[int], np.dtype[np.int32]]
Encode = Callable[[list[str]], list[Ids]]

PART_CHARACTERS = 1 << 20
PLACE = re.compile(r"(?<=[A-Za-z0-9]) (?=[A-Za-z0-9])")


def encode_in_parts(texts: Sequence[str], encode: Encode, *, drops_space: bool) -> list[Ids]:
    """Encode texts with ``encode``: all at once, or in parts if one of them is long.

    ``drops_space``: ``encode`` puts a space before each text, so the space that starts each
    later part is removed first.
    """
    if max(map(len, texts), default=0) <= PART_CHARACTERS:
        return encode(list(texts))
    joined = []
    for text in texts:
        first, *later = cut_text(text, PART_CHARACTERS)
        if drops_space:
            later = [part.removeprefix(" ") for part in later]
        joined.append(np.concatenate([encode([part])[0] for part in (first, *later)]))
    return joined


def cut_text(text: str, part_characters: int) -> Iterator[str]:
    """Cut a text into parts of about ``part_characters`` or fewer that join to the text."""
    start = 0
    while len(text) - start > part_characters:
        end = start + part_characters
        place = PLACE.search(text, end - part_characters // 2, end)
        end = place.start() if place else end
        yield text[start:end]
        start = end
    yield text[start:]


class Tokenizer(ABC):
    """A tokenizer with its settings from a recipe; train it into a folder or load it."""

    def __init__(self, spec: type[TokenizerSpec], settings: Mapping[str, Any]) -> None:
        """Store the settings in the field order of ``spec``."""
        ordered = {key: settings[key] for key in spec.model_fields if key in settings}
        self._settings = copy.deepcopy(ordered)

    def get_settings(self) -> dict[str, Any]:
        """Return the settings as written in the recipe, for manifests and hashes."""
        return copy.deepcopy(self._settings)

    @property
    def vocab_size(self) -> int:
        return int(self._settings["vocab_size"])

    @property
    @abstractmethod
    def eod_id(self) -> int: ...

    @abstractmethod
    def train_on_texts(self, texts: Iterable[str], folder: Path) -> None:
        """Write the tokenizer's file into ``folder`` and load it."""

    @abstractmethod
    def load_file(self, folder: Path) -> None: ...
    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[Ids]: ...
    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str: ...

    def _check_size(self, path: Path, num_pieces: int) -> None:
        if num_pieces != self.vocab_size:
            problem = f"has {num_pieces:,} pieces, tokenizer.vocab_size is {self.vocab_size:,}"
            raise RecipeError(str(path), problem, REBUILD)

    def _too_few(self, num_pieces: int) -> RecipeError:
        problem = f"{self.vocab_size:,} pieces, but the text supports at most {num_pieces:,}"
        remedy = f"set tokenizer.vocab_size={num_pieces}, or train on more text: add "
        remedy += "files, and raise data.tokenizer_sample_bytes if it is a number"
        return RecipeError("tokenizer.vocab_size", problem, remedy)
