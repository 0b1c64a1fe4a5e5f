"""Token files that somebody has already (Megatron's), and ours as Megatron reads them.

Held out are documents at the end of each file, as Megatron's ``--split`` takes them: nothing is
copied or decoded, but copies of a document may stand on both sides.
"""

import hashlib
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from components.config.schema.data import Source
from components.data.files import FileRecord, HashFile, hash_file
from components.data.manifest import Manifest, SourceRecord
from components.data.megatron import MegatronIndex, read_index, write_index
from components.data.token_file import TokenFileRecord, Tokens, open_token_file
from components.errors import RecipeError
from data_prep.read import expand_pattern

BLOCK_TOKENS = 1 << 22
SUFFIX = ".idx"


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
    patterns = [one.removesuffix(SUFFIX).removesuffix(".bin") for one in source.tokens]
    found = [path for one in patterns for path in expand_pattern(one + SUFFIX, where)]
    files = dict.fromkeys(path.absolute() for path in found)
    indices = tuple(read_index(str(file).removesuffix(SUFFIX), where) for file in files)
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
    return [_write(folder, record, manifest.tokenizer.eod_id) for record in records]


def _write(folder: Path, record: TokenFileRecord, eod_id: int) -> Path:
    prefix = (folder / record.name).with_suffix("")
    target = Path(f"{prefix}.bin")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        try:
            partial.hardlink_to(folder / record.name)
        except OSError:  # the file system has no second names
            shutil.copyfile(folder / record.name, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    write_index(prefix, open_token_file(folder, record), record.dtype, eod_id=eod_id)
    return prefix
