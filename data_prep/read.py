"""Read the text of a source document by document, strictly as UTF-8.

A document is a paragraph of a ``.txt`` file up to a blank line, a field of a line of a JSON
lines file, or a whole file of code or markup. All may be compressed. pyarrow decompresses
Zstandard, because Python's reader does not notice a stream that ends too early. Python
decompresses gzip, because pyarrow rejects the zeros that may pad a file.
"""

import gzip
import io
import itertools
import json
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from components.data.files import FileRecord, HashFile, check_regular, hash_file
from components.errors import RecipeError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PATTERN_SIGNS = frozenset("*?[")
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
RECORDS = (".jsonl", ".ndjson", ".json")
_SUFFIXES = (
    "md markdown rst tex html xml py pyi c h cc cpp hpp cu cs java kt scala swift go rs js jsx "
    "ts tsx css rb php pl lua r R jl hs ml f90 sh sql yaml yml toml"
)
WHOLE = tuple(f".{suffix}" for suffix in _SUFFIXES.split())  # the file is one document
TABLES = (".parquet", ".arrow")
PLAIN = (".txt", *RECORDS, *WHOLE)
KINDS = (*(kind + packed for kind in PLAIN for packed in ("", *COMPRESSIONS)), *TABLES)
MOST_LINE_BYTES = 1 << 28  # a longer line is more likely a broken file than a document
READ_BYTES = 1 << 20
UNKNOWN = "unknown"  # no language was identified
DAMAGE = (OSError, EOFError, zlib.error)
MOST_NAMED = 3
FIRST_RECORDS = 100  # read to find the fields that contain text


def kind_of(name: str) -> str | None:
    """Return the suffixes of ``name`` that determine its format, as ``.jsonl.gz``, or None."""
    return next((kind for kind in KINDS if name.endswith(kind)), None)


def decompress_stream(stream: BinaryIO, suffix: str) -> BinaryIO:
    """Return the decompressed stream; reading damaged data raises one of ``DAMAGE``."""
    if suffix not in COMPRESSIONS:
        return stream
    if suffix == ".gz":
        return io.BufferedReader(gzip.open(stream), READ_BYTES)
    import pyarrow  # slow to import, and not needed for plain text

    unpacked: Any = pyarrow.input_stream(stream, compression=COMPRESSIONS[suffix])
    return io.BufferedReader(unpacked, READ_BYTES)


@dataclass(frozen=True, slots=True)
class Document:
    """A text; all documents of one group are on the same side of the held-out split.

    Without a ``group_name``, the text is the group. ``metadata`` is the record's field of that
    name.
    """

    text: str
    group_name: str | None = None
    language: str = UNKNOWN
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def group_text(self) -> str:
        return self.text if self.group_name is None else self.group_name


class Input(ABC):
    """A source of documents that can be read repeatedly.

    ``where`` is the YAML path that named it. ``if_empty`` is the remedy if it has no text.
    """

    name: str
    where: str
    if_empty: ClassVar[str | None] = None

    @abstractmethod
    def hash_input(self, hashed: HashFile = hash_file) -> FileRecord:
        """Return the input's record; RecipeError if the input is missing or has changed."""

    @abstractmethod
    def iter_items(self) -> Iterator[Document | RecipeError]:
        """Yield all documents, including empty ones; for an invalid one, yield the error.

        Raises:
            RecipeError: the input is damaged, has a line that is too long, or no text column.
        """

    def iter_documents(self) -> Iterator[Document]:
        """Yield the documents that are not only white space; raise for an invalid one."""
        for item in self.iter_items():
            if isinstance(item, RecipeError):
                raise item
            if item.text.strip():
                yield item

    def is_empty(self) -> bool:
        """Return whether the input has no document."""
        return next(self.iter_documents(), None) is None

    def _error(self, problem: str, remedy: str) -> RecipeError:
        return RecipeError(self.where, f"{self.name} {problem}", remedy)


def read_documents(inputs: Sequence[Input]) -> Iterator[Document]:
    """Yield the documents of all inputs; RecipeError if no input has text."""
    empty = True
    for text_input in inputs:
        for document in text_input.iter_documents():
            empty = False
            yield document
    if empty and inputs and (remedy := inputs[0].if_empty) is not None:
        raise inputs[0]._error("has no text", remedy)


def describe_skipped(names: Sequence[str]) -> str:
    """Return a line with the number of inputs without text and the names of the first ones."""
    more = ", ..." if len(names) > MOST_NAMED else ""
    return f"skipped {len(names)} inputs without text: {', '.join(names[:MOST_NAMED])}{more}"


@dataclass(frozen=True)
class LocalFile(Input):
    """A text file; ``column`` is the field of the text in a JSON line.

    ``start`` and ``end`` are a byte range of whole documents.
    """

    path: Path
    name: str
    where: str
    column: str
    start: int = 0
    end: int | None = None
    if_empty: ClassVar[str | None] = "remove the file from the recipe, or add text to it"

    def hash_input(self, hashed: HashFile = hash_file) -> FileRecord:
        try:
            sha256, size = hashed(self.path, 0, None), self.path.stat().st_size
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
            raise self._error(problem, "set it to a readable file") from error
        return FileRecord(name=self.name, sha256=sha256, bytes=size)

    def iter_items(self) -> Iterator[Document | RecipeError]:
        if not self._has_kind(RECORDS):
            yield from self._joined_lines()
        for place, record in self._records():
            yield record if isinstance(record, RecipeError) else self._field(record, place)

    def text_columns(self) -> list[str]:
        """List the fields that contain text in one of the first records."""
        names: list[str] = []
        for _, record in itertools.islice(self._records(), FIRST_RECORDS):
            if isinstance(record, RecipeError):
                raise record
            names += [key for key, value in record.items() if isinstance(value, str)]
        return list(dict.fromkeys(names))

    def _has_kind(self, kinds: tuple[str, ...]) -> bool:
        kind = kind_of(self.path.name) or ".txt"
        return f".{kind.split('.')[1]}" in kinds

    def _lines(self) -> Iterator[str | RecipeError]:
        """Yield the lines, which end with LF, CR LF or CR."""
        offset = self.start  # in bytes of the decompressed text
        with (
            self.path.open("rb") as stream,
            decompress_stream(stream, self.path.suffix) as file,
        ):
            if offset:
                file.seek(offset)
            while (self.end is None or offset < self.end) and (
                block := self._read_line(file, offset)
            ):
                start, offset = offset, offset + len(block)
                if start == 0 and block.startswith(BYTE_ORDER_MARK):
                    start = len(BYTE_ORDER_MARK)
                    block = block[start:]
                for line in block.rstrip(b"\r\n").split(b"\r"):
                    try:
                        yield line.decode()
                    except UnicodeDecodeError as error:
                        yield self._error(
                            f"is not UTF-8 at byte {start + error.start:,}",
                            "convert the file to UTF-8, for example with iconv -t UTF-8",
                        )
                    start += len(line) + 1

    def _read_line(self, file: BinaryIO, offset: int) -> bytes:
        try:
            line = file.readline(MOST_LINE_BYTES + 1)
        except DAMAGE as error:
            problem = f"is damaged after byte {offset:,} of its text: {error}"
            raise self._error(problem, "copy the file again") from error
        if len(line) > MOST_LINE_BYTES:
            problem = f"has a line of more than {MOST_LINE_BYTES:,} bytes at byte {offset:,}"
            remedy = "split the line into documents"
            if b"\r" in line:
                remedy = "convert CR line ends to LF, for example with tr '\\r' '\\n'"
            raise self._error(problem, remedy)
        return line

    def _joined_lines(self) -> Iterator[Document | RecipeError]:
        """Join the lines of a document; its first invalid line makes the document invalid."""
        is_one_document = self._has_kind(WHOLE)
        lines: list[str | RecipeError] = []
        size = 0
        for line in itertools.chain(self._lines(), [None]):
            if isinstance(line, RecipeError) or (
                line is not None and (is_one_document or line.strip())
            ):
                lines.append(line)
                size += len(line) + 1 if isinstance(line, str) else 0
                if size > MOST_LINE_BYTES:
                    problem = f"has a document of more than {MOST_LINE_BYTES:,} characters"
                    raise self._error(problem, "split the document with blank lines")
            elif lines:
                invalid = next((part for part in lines if not isinstance(part, str)), None)
                yield invalid or Document("\n".join(map(str, lines)))
                lines, size = [], 0

    def _records(self) -> Iterator[tuple[str, dict[str, Any] | RecipeError]]:
        """Parse each nonblank line of a JSON lines file; yield its place and its record."""
        if not self._has_kind(RECORDS):
            return
        begin = f" (lines counted from byte {self.start:,})" if self.start else ""
        for number, line in enumerate(self._lines(), start=1):
            place = f"{self.name}{begin}:{number} line {number}"
            if isinstance(line, RecipeError):
                yield place, line
            elif line.strip():
                yield place, self._parse(line, place)

    def _parse(self, line: str, place: str) -> dict[str, Any] | RecipeError:
        try:
            tree = json.loads(line)
        except (ValueError, RecursionError) as error:
            problem = f"{place} is not JSON ({error})"
            return RecipeError(self.where, problem, self._remedy)
        return tree if isinstance(tree, dict) else {}

    @property
    def _remedy(self) -> str:
        return f'write one JSON object per line: {{"{self.column}": "..."}}'

    def _field(self, record: Mapping[str, Any], place: str) -> Document | RecipeError:
        text, remedy = record.get(self.column), self._remedy
        if not isinstance(text, str):
            return RecipeError(self.where, f"{place} has no text", remedy)
        try:
            text.encode()
        except UnicodeEncodeError:
            problem = f"{place} has a lone surrogate escape (half a character)"
            return RecipeError(self.where, problem, remedy)
        metadata = record.get("metadata")
        return Document(text, metadata=metadata if isinstance(metadata, dict) else {})


def expand_pattern(pattern: str, where: str) -> list[Path]:
    """Return the files that match a pattern (or name) relative to the current folder.

    No match, or a pipe or device, is a RecipeError. Folders are returned.
    """
    path = Path(pattern)
    hits = [path] if os.path.lexists(path) else []
    if not hits and PATTERN_SIGNS & set(str(path)):
        anchor = Path(path.anchor)
        hits = sorted(anchor.glob(str(path.relative_to(anchor))))
    if not hits:
        remedy = f"set a path relative to the working directory {Path.cwd()}"
        raise RecipeError(where, f"no file matches {pattern}", remedy)
    for hit in hits:
        if not hit.is_dir():  # callers handle folders
            check_regular(hit, where)
    return hits
