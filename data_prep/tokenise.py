"""Who trains the tokenizer and writes the token files: this process, source by source."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from components.data.files import FileRecord, record_file
from components.data.token_file import TokenFileRecord
from components.data.tokenizer import Tokenizer
from data_prep.encode import encode
from data_prep.read import Document
from data_prep.sources import OpenSource
from data_prep.split import Split
from data_prep.tokenizer_sample import training_texts

Sides = tuple[TokenFileRecord, TokenFileRecord]


@dataclass(frozen=True, kw_only=True)
class SplitText:
    """The sources and what is held out of each."""

    sources: Mapping[str, OpenSource]
    splits: Mapping[str, Split]


class Tokenise(Protocol):
    """Make the same files, wherever the work is done."""

    def train(
        self,
        text: SplitText,
        tokenizer: Tokenizer,
        sample_bytes: int | Literal["all"],
        folder: Path,
    ) -> tuple[FileRecord, ...]:
        """Train ``tokenizer`` into ``folder`` and load it; name its files where they stay."""
        ...

    def write(
        self, text: SplitText, tokenizer: Tokenizer, files: tuple[FileRecord, ...], folder: Path
    ) -> dict[str, Sides]:
        """Write for each source what is trained on and what is held out into ``folder``."""
        ...


class Here:
    """This process alone: for sources that no pass has been over."""

    def train(
        self,
        text: SplitText,
        tokenizer: Tokenizer,
        sample_bytes: int | Literal["all"],
        folder: Path,
    ) -> tuple[FileRecord, ...]:
        documents = {name: source.documents for name, source in text.sources.items()}
        tokenizer.train(training_texts(documents, text.splits, sample_bytes), folder)
        return tuple(map(record_file, sorted(folder.iterdir())))

    def write(
        self, text: SplitText, tokenizer: Tokenizer, files: tuple[FileRecord, ...], folder: Path
    ) -> dict[str, Sides]:
        def act(name: str, side: str, part: Callable[[Document], str]) -> TokenFileRecord:
            texts = filter(None, map(part, text.sources[name].documents()))
            return encode(folder / f"{name}.{side}.tokens", texts, tokenizer)

        return {
            name: (
                act(name, "train", split.train_text),
                act(name, "held_out", split.held_out_text),
            )
            for name, split in text.splits.items()
        }
