"""Token files: written here with a trained or given tokenizer, or Megatron's, read in place.

A balanced training sample keeps small languages from being underrepresented. Hashes select it,
so it is spread over the whole source and is the same on every machine. Of Megatron's files, the
last documents of each file are held out, like its ``--split``; copies of a document may be on
both sides.
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
from components.data.token_file import (
    TokenArray,
    TokenFileRecord,
    encode_to_file,
    open_token_file,
)
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
    """Yield the tokenizer's training text: equal samples of each source, no held-out text."""
    for name, documents in sources.items():
        texts = map(splits[name].train_text, documents)
        yield from texts if sample_bytes == "all" else sample_texts(texts, sample_bytes)


def sample_texts(texts: Iterable[str], sample_bytes: int) -> list[str]:
    """Return pieces of a few lines, together at most ``sample_bytes`` UTF-8 bytes.

    The pieces with the smallest hashes are kept, in one pass; only the sample is in memory.
    """
    sample: list[tuple[int, str]] = []
    num_bytes = 0
    for piece in chain.from_iterable(map(_pieces, texts)):
        content = piece.encode()
        digest = hashlib.blake2b(content, digest_size=8, person=b"tokenizer").digest()
        heapq.heappush(sample, (-int.from_bytes(digest, "little"), piece))
        num_bytes += len(content)
        while num_bytes > sample_bytes:
            num_bytes -= len(heapq.heappop(sample)[1].encode())
    return [piece for _, piece in sorted(sample, reverse=True)]


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
    """Return the records of the tokenizer's files in ``folder``; none if it is "none"."""
    if folder == "none":
        return ()
    paths = [path for name in FILE_NAMES if (path := Path(folder) / name).is_file()]
    if not paths:
        remedy = "set it to the folder of a tokenizer, or to none to train a tokenizer"
        problem = f"{folder} has none of {', '.join(FILE_NAMES)}"
        problem = problem if Path(folder).exists() else f"{folder} does not exist"
        raise RecipeError(PATH, problem, remedy)
    return tuple(replace(record_file(path), name=str(path)) for path in paths)


def take_tokenizer(tokenizer: Tokenizer, files: tuple[FileRecord, ...], folder: Path) -> None:
    """Copy the files into ``folder`` and load them; RecipeError if the recipe differs."""
    for file in files:
        shutil.copyfile(file.name, folder / Path(file.name).name)
    try:
        tokenizer.load_file(folder)
    except RecipeError as error:
        folder_given, remedy = Path(files[0].name).parent, error.remedy
        problem = f"the tokenizer in {folder_given} {error.problem}"
        if remedy == REBUILD:
            problem = f"the tokenizer in {folder_given} differs: {error.problem}"
            remedy = "set tokenizer to match the tokenizer in the folder"
        raise RecipeError(PATH, problem, remedy) from error


Sides = tuple[TokenFileRecord, TokenFileRecord]


@dataclass(frozen=True, kw_only=True)
class TokeniseTask:
    """What to tokenize into which folder; training takes ``sample_bytes`` from each source."""

    sources: Mapping[str, OpenSource]
    splits: Mapping[str, HeldOutSplit]
    tokenizer: Tokenizer
    sample_bytes: int | Literal["all"]
    folder: Path


class Tokenise(Protocol):
    """Tokenizer training and encoding; every implementation writes the same files."""

    def train_tokenizer(self, task: TokeniseTask) -> tuple[FileRecord, ...]:
        """Train the tokenizer and load it; return its files with their final paths."""

    def write_token_files(
        self, task: TokeniseTask, files: tuple[FileRecord, ...]
    ) -> dict[str, Sides]:
        """Write the training and held-out token files of each source."""


class LocalTokenise:
    """Tokenization in this process, for sources that no stage has cleaned."""

    def train_tokenizer(self, task: TokeniseTask) -> tuple[FileRecord, ...]:
        documents = {name: source.iter_documents() for name, source in task.sources.items()}
        texts = training_texts(documents, task.splits, task.sample_bytes)
        task.tokenizer.train_on_texts(texts, task.folder)
        return tuple(map(record_file, sorted(task.folder.iterdir())))

    def write_token_files(
        self, task: TokeniseTask, files: tuple[FileRecord, ...]
    ) -> dict[str, Sides]:
        def write_side(
            name: str, side: str, part: Callable[[Document], str]
        ) -> TokenFileRecord:
            texts = filter(None, map(part, task.sources[name].iter_documents()))
            return encode_to_file(task.folder / f"{name}.{side}.tokens", texts, task.tokenizer)

        written = {}
        for name, split in task.splits.items():
            train = write_side(name, "train", split.train_text)
            written[name] = train, write_side(name, "held_out", split.held_out_text)
        return written


BLOCK_TOKENS = 1 << 22
INDEX = ".idx"


@dataclass(frozen=True)
class TokenSource:
    """The checked indices of one source; ``records`` contain the hashes of the index files."""

    where: str
    eod: Literal["appended", "absent"]
    indices: tuple[MegatronIndex, ...]
    records: tuple[FileRecord, ...]

    def describe_content(self) -> list[tuple[object, ...]]:
        """Return what determines the manifest's entry, including the paths of the files."""
        return [
            (self.eod, record.name, record.sha256, index.tokens)
            for index, record in zip(self.indices, self.records, strict=True)
        ]

    def measure_files(self, *, vocab_size: int, eod_id: int, fraction: float) -> SourceRecord:
        """Read every ``.bin`` file once: hash it, check its ids, and split its documents.

        A document that lacks the end-of-document id, or a changed file, is a RecipeError.
        """
        parts = [self._parts(index, fraction, vocab_size, eod_id) for index in self.indices]
        return SourceRecord(
            inputs=self.records,
            documents=sum(index.num_documents for index in self.indices),
            train=tuple(train for train, _ in parts),
            held_out=tuple(held_out for _, held_out in parts),
        )

    def _parts(
        self, index: MegatronIndex, fraction: float, vocab_size: int, eod_id: int
    ) -> tuple[TokenFileRecord, TokenFileRecord]:
        path, documents = index.bin_file, index.num_documents
        size = path.stat().st_size
        record = TokenFileRecord(str(path), "", size, index.tokens, documents, index.width)
        record = replace(record, sha256=self._read_through(index, record, vocab_size, eod_id))
        num_held_out = held_out_documents(documents, fraction)
        num_train = documents - num_held_out
        cut = int(index.document_ends(num_train - 1, num_train)[0]) if num_train else 0
        held_out = replace(
            record, tokens=index.tokens - cut, documents=num_held_out, first_token=cut
        )
        return replace(record, tokens=cut, documents=num_train), held_out

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
                fault = f"has id {block[place]:,} at token {start + place:,}"
                problem = f"{record.name} {fault}, the largest id is {vocab_size - 1:,}"
                remedy = "set tokenizer to match the tokenizer that wrote the files"
                raise RecipeError(self.where, problem, remedy)
        if self.eod == "appended" and record.tokens:
            self._check_ends(index, tokens, eod_id)
        return digest.hexdigest()

    def _check_ends(self, index: MegatronIndex, tokens: TokenArray, eod_id: int) -> None:
        for first in range(0, index.num_documents, BLOCK_TOKENS):
            ends = index.document_ends(first, min(first + BLOCK_TOKENS, index.num_documents))
            last = tokens[np.maximum(ends - 1, 0)]
            without = (last != eod_id) & (ends > 0)  # ends is 0 for leading empty documents
            if without.any():
                place = int(np.argmax(without))
                fault = f"document {first + place:,} of {index.bin_file} ends with id"
                problem = f"{fault} {last[place]:,}, not with the end-of-document id {eod_id:,}"
                key = f"{self.where.removesuffix('.tokens')}.eod"
                remedy = "tokenize again with --append-eod, correct tokenizer, or set"
                raise RecipeError(self.where, problem, f"{remedy} {key}=absent")


def open_token_source(name: str, source: Source, hashed: HashFile = hash_file) -> TokenSource:
    """Find, check and hash the indices that a source names."""
    where = f"data.sources.{name}.tokens"
    patterns = [pattern.removesuffix(INDEX).removesuffix(".bin") for pattern in source.tokens]
    paths = [path for pattern in patterns for path in expand_pattern(pattern + INDEX, where)]
    files = dict.fromkeys(path.absolute() for path in paths)
    indices = tuple(read_index(str(file).removesuffix(INDEX), where) for file in files)
    records = tuple(
        FileRecord(str(file), hashed(file, 0, None), file.stat().st_size) for file in files
    )
    return TokenSource(where=where, eod=source.eod, indices=indices, records=records)


def held_out_documents(documents: int, fraction: float) -> int:
    """Count the documents to hold out: if there are two, at least one and not all."""
    return min(max(round(documents * fraction), 1), max(documents - 1, 0))


def write_megatron(folder: Path, manifest: Manifest) -> list[Path]:
    """Write ``PREFIX.bin`` and ``PREFIX.idx`` for each token file; return the prefixes.

    A ``.bin`` file is a hard link to the token file, or a copy if the file system has no hard
    links. Files that are read in place are skipped.
    """
    prefixes, eod_id = list[Path](), manifest.tokenizer.eod_id
    sources = ((*source.train, *source.held_out) for source in manifest.sources.values())
    for record in chain.from_iterable(sources):
        if Path(record.name).is_absolute():
            continue
        file = folder / record.name
        prefix = file.with_suffix("")
        target = Path(f"{prefix}.bin")
        try:
            if not (target.exists() and target.samefile(file)):
                target.unlink(missing_ok=True)
                target.hardlink_to(file)
        except OSError:  # the file system has no hard links
            with file.open("rb") as read, files.replace_atomically(target) as write:
                shutil.copyfileobj(read, write)
        write_index(prefix, open_token_file(folder, record), record.dtype, eod_id=eod_id)
        prefixes.append(prefix)
    return prefixes
