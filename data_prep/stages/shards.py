"""Shards of clean text: zstd-compressed JSON lines, the same bytes on every machine.

A line has ``text``, also ``language`` if it was identified, and ``group`` if the document's
group is not its text (see :mod:`data_prep.read`).
"""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import zstandard

from components.data.files import FileRecord, HashFile, hash_file, replace_atomically
from components.errors import RecipeError
from data_prep.read import UNKNOWN, Document, Input

SUFFIX = ".jsonl.zst"
LEVEL = 3  # the default of zstd


@contextmanager
def write_shard(path: Path) -> Iterator[Callable[[Document], None]]:
    """Yield a function that appends a document; the shard appears when it is complete."""
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    with (
        replace_atomically(path) as file,
        compressor.stream_writer(file, closefd=False) as stream,
    ):

        def add_document(document: Document) -> None:
            line = {"text": document.text}
            if document.language != UNKNOWN:
                line["language"] = document.language
            if document.group_name is not None:
                line["group"] = document.group_name
            stream.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

        yield add_document


def read_shard(path: Path) -> Iterator[Document]:
    """Read a verified shard, document by document."""
    with (
        path.open("rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file) as stream,
        io.BufferedReader(stream, buffer_size=1 << 20) as lines,
    ):
        for line in lines:
            tree = orjson.loads(line)
            yield Document(tree["text"], tree.get("group"), tree.get("language", UNKNOWN))


@dataclass(frozen=True)
class CleanShard(Input):
    """A clean shard as input of the next steps: tokenizer training and token files."""

    path: Path
    expected: FileRecord

    def hash_input(self, hashed: HashFile = hash_file) -> FileRecord:
        remedy = f"delete {self.path.parent} and run the same command again"
        if not self.path.is_file():
            raise RecipeError(str(self.path), "was removed after its stage wrote it", remedy)
        if hashed(self.path, 0, None) != self.expected.sha256:
            raise RecipeError(str(self.path), "was changed after its stage wrote it", remedy)
        return self.expected

    def iter_items(self) -> Iterator[Document | RecipeError]:
        return read_shard(self.path)


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write a ``.npy`` file atomically."""
    with replace_atomically(path) as file:
        np.save(file, array, allow_pickle=False)
