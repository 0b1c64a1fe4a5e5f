"""What data preparation asks of a tokenizer, whatever its family."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from components.data.long_text import Ids


class Tokenizer(Protocol):
    """Settings from a recipe; then trained into a folder, or loaded from it, and used."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def eod_id(self) -> int: ...

    def settings(self) -> dict[str, Any]:
        """Give the settings back as the recipe wrote them, for manifests and hashes."""
        ...

    def train(self, texts: Iterable[str], folder: Path) -> None:
        """Write the tokenizer's files into ``folder``, then use it."""
        ...

    def load(self, folder: Path) -> None: ...
    def encode(self, texts: Sequence[str]) -> list[Ids]: ...
    def decode(self, ids: Iterable[int]) -> str: ...
