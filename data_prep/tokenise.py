"""Who trains the tokenizer, on which sample, or takes a given one, and writes the token files.

A balanced sample keeps a small language from drowning; hashes choose it, so that it is spread
over the whole source and the same on every machine.
"""

import hashlib
import heapq
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal, Protocol

from components.data import byte_bpe, unigram
from components.data.files import FileRecord, record_file
from components.data.token_file import TokenFileRecord, encode
from components.data.tokenizer import Tokenizer
from components.errors import RecipeError
from data_prep.read import Document
from data_prep.sources import HeldOutSplit, OpenSource

PIECE_CHARACTERS = 1000


def training_texts(
    sources: Mapping[str, Iterable[Document]],
    splits: Mapping[str, HeldOutSplit],
    sample_bytes: int | Literal["all"],
) -> Iterator[str]:
    """Draw the tokenizer's text from the training side alone, as much of each source."""
    for name, documents in sources.items():
        texts = map(splits[name].train_text, documents)
        yield from texts if sample_bytes == "all" else sample_texts(texts, sample_bytes)


def sample_texts(texts: Iterable[str], sample_bytes: int) -> list[str]:
    """Draw pieces of a few lines, at most ``sample_bytes`` UTF-8 bytes together.

    The pieces with the smallest hashes are kept in one pass, in memory for the sample alone.
    """
    kept: list[tuple[int, str]] = []
    kept_bytes = 0
    for piece in chain.from_iterable(map(_pieces, texts)):
        content = piece.encode()
        digest = hashlib.blake2b(content, digest_size=8, person=b"tokenizer").digest()
        heapq.heappush(kept, (-int.from_bytes(digest, "little"), piece))
        kept_bytes += len(content)
        while kept_bytes > sample_bytes:
            kept_bytes -= len(heapq.heappop(kept)[1].encode())
    return [piece for _, piece in sorted(kept, reverse=True)]


def _pieces(text: str) -> Iterator[str]:
    """Cut ``text`` at line ends into pieces of about ``PIECE_CHARACTERS``."""
    piece: list[str] = []
    size = 0
    for line in text.split("\n"):
        piece.append(line)
        size += len(line)
        if size >= PIECE_CHARACTERS:
            yield "\n".join(piece)
            piece, size = [], 0
    if size:
        yield "\n".join(piece)


PATH = "data.tokenizer_folder"
FILE_NAMES = (byte_bpe.FILE_NAME, unigram.FILE_NAME)


def find_tokenizer(folder: str) -> tuple[FileRecord, ...]:
    """Hash the tokenizer's files in ``folder``; none if the recipe says ``none``.

    Raises:
        RecipeError: the folder holds no such file.
    """
    if folder == "none":
        return ()
    found = [path for name in FILE_NAMES if (path := Path(folder) / name).is_file()]
    if not found:
        remedy = "name the folder of a tokenizer, or set it to none to train one"
        raise RecipeError(PATH, f"{folder} holds none of {', '.join(FILE_NAMES)}", remedy)
    return tuple(replace(record_file(path), name=str(path)) for path in found)


def take_tokenizer(tokenizer: Tokenizer, files: tuple[FileRecord, ...], folder: Path) -> None:
    """Copy the files into ``folder`` and load them from there.

    Raises:
        RecipeError: they are not of the tokenizer that the recipe describes.
    """
    for file in files:
        shutil.copyfile(file.name, folder / Path(file.name).name)
    try:
        tokenizer.load(folder)
    except RecipeError as error:
        problem = f"{Path(files[0].name).parent} holds another tokenizer: {error.problem}"
        remedy = "let tokenizer describe the one in the folder"
        raise RecipeError(PATH, problem, remedy) from error


Sides = tuple[TokenFileRecord, TokenFileRecord]


@dataclass(frozen=True, kw_only=True)
class TokeniseTask:
    """The sources, what is held out of each, the tokenizer, and the folder of all files.

    Of each source ``sample_bytes`` are what the tokenizer is trained on.
    """

    sources: Mapping[str, OpenSource]
    splits: Mapping[str, HeldOutSplit]
    tokenizer: Tokenizer
    sample_bytes: int | Literal["all"]
    folder: Path


class Tokenise(Protocol):
    """Make the same files, wherever the work is done."""

    def train(self, task: TokeniseTask) -> tuple[FileRecord, ...]:
        """Train the tokenizer and load it; name its files where they stay."""
        ...

    def write(self, task: TokeniseTask, files: tuple[FileRecord, ...]) -> dict[str, Sides]:
        """Write for each source what is trained on and what is held out."""
        ...


class Here:
    """This process alone: for sources that no pass has been over."""

    def train(self, task: TokeniseTask) -> tuple[FileRecord, ...]:
        documents = {name: source.documents() for name, source in task.sources.items()}
        texts = training_texts(documents, task.splits, task.sample_bytes)
        task.tokenizer.train(texts, task.folder)
        return tuple(map(record_file, sorted(task.folder.iterdir())))

    def write(self, task: TokeniseTask, files: tuple[FileRecord, ...]) -> dict[str, Sides]:
        def act(name: str, side: str, part: Callable[[Document], str]) -> TokenFileRecord:
            texts = filter(None, map(part, task.sources[name].documents()))
            return encode(task.folder / f"{name}.{side}.tokens", texts, task.tokenizer)

        written = {}
        for name, split in task.splits.items():
            train = act(name, "train", split.train_text)
            written[name] = train, act(name, "held_out", split.held_out_text)
        return written
