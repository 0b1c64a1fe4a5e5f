"""Token files: written here, by a tokenizer trained here or given; or Megatron's, in and out.

A balanced sample to train on keeps a small language from drowning; hashes choose it, so that it
is spread over the whole source and the same on every machine. Of Megatron's files, documents at
the end of each are held out, as its ``--split`` takes them: nothing is copied or decoded, but
copies of a document may stand on both sides.
"""

import hashlib
import heapq
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from components.config.schema.data import Source
from components.data import byte_bpe, files, unigram
from components.data.files import REBUILD, FileRecord, HashFile, hash_file, record_file
from components.data.manifest import Manifest, SourceRecord
from components.data.megatron import MegatronIndex, read_index, write_index
from components.data.token_file import TokenFileRecord, Tokens, encode, open_token_file
from components.data.tokenizer import Tokenizer
from components.errors import RecipeError
from data_prep.read import Document, expand_pattern
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
        problem = f"{folder} holds none of {', '.join(FILE_NAMES)}"
        problem = problem if Path(folder).exists() else f"there is no folder {folder}"
        raise RecipeError(PATH, problem, remedy)
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
        folder_given, remedy = Path(files[0].name).parent, error.remedy
        problem = f"the tokenizer in {folder_given} {error.problem}"
        if remedy == REBUILD:
            problem = f"{folder_given} holds another tokenizer: {error.problem}"
            remedy = "let tokenizer describe the one in the folder"
        raise RecipeError(PATH, problem, remedy) from error


Sides = tuple[TokenFileRecord, TokenFileRecord]


@dataclass(frozen=True, kw_only=True)
class TokeniseTask:
    """What is tokenised, into which folder; on ``sample_bytes`` of each source one trains."""

    sources: Mapping[str, OpenSource]
    splits: Mapping[str, HeldOutSplit]
    tokenizer: Tokenizer
    sample_bytes: int | Literal["all"]
    folder: Path


class Tokenise(Protocol):
    """Make the same files, wherever the work is done."""

    def train(self, task: TokeniseTask) -> tuple[FileRecord, ...]:
        """Train the tokenizer and load it; name its files where they stay."""

    def write(self, task: TokeniseTask, files: tuple[FileRecord, ...]) -> dict[str, Sides]:
        """Write for each source what is trained on and what is held out."""


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


BLOCK_TOKENS = 1 << 22
INDEX = ".idx"


@dataclass(frozen=True)
class TokenSource:
    """The checked indices of one source; ``records`` are their hashes."""

    where: str
    eod: Literal["appended", "absent"]
    indices: tuple[MegatronIndex, ...]
    records: tuple[FileRecord, ...]

    def identity(self) -> list[tuple[object, ...]]:
        """Describe what decides the manifest's entry: where the files lie is part of it."""
        return [
            (self.eod, record.name, record.sha256, index.tokens)
            for index, record in zip(self.indices, self.records, strict=True)
        ]

    def measure(self, *, vocab_size: int, eod_id: int, fraction: float) -> SourceRecord:
        """Read every ``.bin`` file once: hash it, check its ids, and part it in two.

        Raises:
            RecipeError: an id outside the vocabulary, a document without the end-of-document
                id, or a file that has changed meanwhile.
        """
        parts = [self._parts(index, fraction, vocab_size, eod_id) for index in self.indices]
        return SourceRecord(
            inputs=self.records,
            documents=sum(index.documents for index in self.indices),
            train=tuple(train for train, _ in parts),
            held_out=tuple(held_out for _, held_out in parts),
        )

    def _parts(
        self, index: MegatronIndex, fraction: float, vocab_size: int, eod_id: int
    ) -> tuple[TokenFileRecord, TokenFileRecord]:
        path, documents = index.bin_file, index.documents
        size = path.stat().st_size
        whole = TokenFileRecord(str(path), "", size, index.tokens, documents, index.width)
        whole = replace(whole, sha256=self._read_through(index, whole, vocab_size, eod_id))
        left = held_out_documents(documents, fraction)
        kept = documents - left
        cut = int(index.document_ends(kept - 1, kept)[0]) if kept else 0
        rest = replace(whole, tokens=index.tokens - cut, documents=left, first_token=cut)
        return replace(whole, tokens=cut, documents=kept), rest

    def _read_through(
        self, index: MegatronIndex, record: TokenFileRecord, vocab_size: int, eod_id: int
    ) -> str:
        digest = hashlib.sha256()
        tokens = open_token_file(Path(), record)
        for start in range(0, len(tokens), BLOCK_TOKENS):
            block = tokens[start : start + BLOCK_TOKENS]
            digest.update(block.tobytes())
            wrong = (block < 0) | (block >= vocab_size)
            if wrong.any():
                place = int(np.argmax(wrong))
                found = f"has id {block[place]:,} at token {start + place:,}"
                problem = f"{record.name} {found}, the vocabulary ends with {vocab_size - 1:,}"
                remedy = "let tokenizer describe the tokenizer that wrote the files"
                raise RecipeError(self.where, problem, remedy)
        if self.eod == "appended" and record.tokens:
            self._check_ends(index, tokens, eod_id)
        return digest.hexdigest()

    def _check_ends(self, index: MegatronIndex, tokens: Tokens, eod_id: int) -> None:
        for first in range(0, index.documents, BLOCK_TOKENS):
            ends = index.document_ends(first, min(first + BLOCK_TOKENS, index.documents))
            last = tokens[np.maximum(ends - 1, 0)]
            without = (last != eod_id) & (ends > 0)  # an empty document stands behind an end
            if without.any():
                place = int(np.argmax(without))
                found = f"document {first + place:,} of {index.bin_file} ends with id"
                problem = f"{found} {last[place]:,}, not with the end of document, {eod_id:,}"
                key = f"{self.where.removesuffix('.tokens')}.eod"
                remedy = "tokenize again with --append-eod, correct tokenizer, or set"
                raise RecipeError(self.where, problem, f"{remedy} {key}=absent")


def open_token_source(name: str, source: Source, hashed: HashFile = hash_file) -> TokenSource:
    """Find, check and hash the indices that a source names.

    Raises:
        RecipeError: a prefix or pattern without files, or an index that is not sound.
    """
    where = f"data.sources.{name}.tokens"
    patterns = [one.removesuffix(INDEX).removesuffix(".bin") for one in source.tokens]
    found = [path for one in patterns for path in expand_pattern(one + INDEX, where)]
    files = dict.fromkeys(path.absolute() for path in found)
    indices = tuple(read_index(str(file).removesuffix(INDEX), where) for file in files)
    records = tuple(
        FileRecord(str(file), hashed(file, 0, None), file.stat().st_size) for file in files
    )
    return TokenSource(where=where, eod=source.eod, indices=indices, records=records)


def held_out_documents(documents: int, fraction: float) -> int:
    """Count the documents to hold out: at least one, and not all, where there are two."""
    return min(max(round(documents * fraction), 1), max(documents - 1, 0))


def write_megatron(folder: Path, manifest: Manifest) -> list[Path]:
    """Write ``PREFIX.bin`` and ``PREFIX.idx`` for each token file; return the prefixes.

    A ``.bin`` file has the bytes of the token file: it is another name of it, and a copy only
    where the file system has no such names. Files that are read in place are left out.
    """
    records = [
        record
        for source in manifest.sources.values()
        for record in (*source.train, *source.held_out)
        if not Path(record.name).is_absolute()
    ]
    return [_write_one(folder, record, manifest.tokenizer.eod_id) for record in records]


def _write_one(folder: Path, record: TokenFileRecord, eod_id: int) -> Path:
    prefix = (folder / record.name).with_suffix("")
    source, target = folder / record.name, Path(f"{prefix}.bin")
    try:
        if not (target.exists() and target.samefile(source)):
            target.unlink(missing_ok=True)
            target.hardlink_to(source)
    except OSError:  # the file system has no second names
        with source.open("rb") as read, files.replace_atomically(target) as write:
            shutil.copyfileobj(read, write)
    write_index(prefix, open_token_file(folder, record), record.dtype, eod_id=eod_id)
    return prefix
