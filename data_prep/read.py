"""Read the text of a source: document by document, strictly UTF-8.

In a ``.txt`` file a document is a paragraph, ended by a blank line. In a file of JSON lines a
document is a field of a line. A file of code or markup is one document. All may be compressed.
pyarrow decompresses Zstandard, because Python's own reader does not notice a stream that ends
too early. Python decompresses gzip, because pyarrow refuses the zeros that may pad a file.
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
UNKNOWN = "unknown"  # language
DAMAGE = (OSError, EOFError, zlib.error)
MOST_NAMED = 3
FIRST_RECORDS = 100  # that tell which fields hold text


def kind_of(name: str) -> str | None:
    """Return the end of ``name`` that says its format, as ``.jsonl.gz``, if one does."""
    return next((kind for kind in KINDS if name.endswith(kind)), None)


def unpack(stream: BinaryIO, suffix: str) -> BinaryIO:
    """Return the bytes of a text; reading raises one of ``DAMAGE`` where it is damaged."""
    if suffix not in COMPRESSIONS:
        return stream
    if suffix == ".gz":
        return io.BufferedReader(gzip.open(stream), READ_BYTES)
    import pyarrow  # slow to import: who reads plain text does not wait for it

    unpacked: Any = pyarrow.input_stream(stream, compression=COMPRESSIONS[suffix])
    return io.BufferedReader(unpacked, READ_BYTES)


@dataclass(frozen=True, slots=True)
class Document:
    """A text; documents of one ``group`` stay together when some are held out.

    Without a ``group_name`` it is its own group: only its copies share its fate. ``metadata``
    is what a record says of its text in a field of that name.
    """

    text: str
    group_name: str | None = None
    language: str = UNKNOWN
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def group(self) -> str:
        return self.text if self.group_name is None else self.group_name


class Input(ABC):
    """Something that holds documents and can be read again and again.

    ``where`` is the YAML path that named it, ``if_empty`` the way out if it holds no text.
    """

    name: str
    where: str
    if_empty: ClassVar[str | None] = None

    @abstractmethod
    def record(self, hashed: HashFile = hash_file) -> FileRecord:
        """Hash it.

        Raises:
            RecipeError: it is missing, cannot be read, or was changed by somebody else.
        """

    @abstractmethod
    def items(self) -> Iterator[Document | RecipeError]:
        """Read all documents, empty ones too; for an invalid one, give what is wrong.

        Raises:
            RecipeError: it is damaged, or has a line that never ends, or no column of texts.
        """

    def documents(self) -> Iterator[Document]:
        """Read the documents that are more than white space.

        Raises:
            RecipeError: see :meth:`items`; or an invalid document.
        """
        for item in self.items():
            if isinstance(item, RecipeError):
                raise item
            if item.text.strip():
                yield item

    def is_empty(self) -> bool:
        """Tell whether it holds no document."""
        return next(self.documents(), None) is None

    def _error(self, problem: str, remedy: str) -> RecipeError:
        return RecipeError(self.where, f"{self.name} {problem}", remedy)


def read_documents(inputs: Sequence[Input]) -> Iterator[Document]:
    """Read the documents of all inputs; one without text is skipped.

    Raises:
        RecipeError: an input cannot be read, or none of them holds text.
    """
    empty = True
    for text_input in inputs:
        for document in text_input.documents():
            empty = False
            yield document
    if empty and inputs and (remedy := inputs[0].if_empty) is not None:
        raise inputs[0]._error("holds no text", remedy)


def describe_skipped(names: Sequence[str]) -> str:
    """Count inputs without text, and name the first."""
    more = ", ..." if len(names) > MOST_NAMED else ""
    return f"skipped {len(names)} without text: {', '.join(names[:MOST_NAMED])}{more}"


@dataclass(frozen=True)
class LocalFile(Input):
    """A file of text, ``column`` the field of its texts.

    ``start`` and ``end`` bound a part of it, in bytes, that begins and ends with a document.
    """

    path: Path
    name: str
    where: str
    column: str
    start: int = 0
    end: int | None = None
    if_empty: ClassVar[str | None] = "leave it out, or fill it"

    def record(self, hashed: HashFile = hash_file) -> FileRecord:
        try:
            sha256, size = hashed(self.path, 0, None), self.path.stat().st_size
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
            raise self._error(problem, "name a readable file") from error
        return FileRecord(name=self.name, sha256=sha256, bytes=size)

    def items(self) -> Iterator[Document | RecipeError]:
        return self._fields() if self._has_kind(RECORDS) else self._joined_lines()

    def text_columns(self) -> list[str]:
        """List the fields that hold text in one of the first records.

        Raises:
            RecipeError: the file is damaged, or one of these records is invalid.
        """
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
        """Read lines that end with LF, CR LF or CR."""
        offset = self.start  # in the bytes of the text, unpacked
        with self.path.open("rb") as stream, unpack(stream, self.path.suffix) as file:
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
                            "convert it, for example with iconv -t UTF-8",
                        )
                    start += len(line) + 1

    def _read_line(self, file: BinaryIO, offset: int) -> bytes:
        try:
            line = file.readline(MOST_LINE_BYTES + 1)
        except DAMAGE as error:
            problem = f"is damaged behind byte {offset:,} of its text: {error}"
            raise self._error(problem, "copy it anew") from error
        if len(line) > MOST_LINE_BYTES:
            problem = f"has a line of more than {MOST_LINE_BYTES:,} bytes at byte {offset:,}"
            remedy = "split it into documents"
            if b"\r" in line:
                remedy = "convert line ends of CR alone, for example with tr '\\r' '\\n'"
            raise self._error(problem, remedy)
        return line

    def _joined_lines(self) -> Iterator[Document | RecipeError]:
        """Join the lines of a paragraph, or of a file that is one document.

        The first invalid line makes its document invalid.
        """
        whole = self._has_kind(WHOLE)
        lines: list[str | RecipeError] = []
        size = 0
        for line in itertools.chain(self._lines(), [None]):
            if isinstance(line, RecipeError) or (line is not None and (whole or line.strip())):
                lines.append(line)
                size += len(line) + 1 if isinstance(line, str) else 0
                if size > MOST_LINE_BYTES:
                    problem = f"has a document of more than {MOST_LINE_BYTES:,} characters"
                    raise self._error(problem, "split it into documents by blank lines")
            elif lines:
                invalid = next((part for part in lines if not isinstance(part, str)), None)
                yield invalid or Document("\n".join(map(str, lines)))
                lines, size = [], 0

    def _fields(self) -> Iterator[Document | RecipeError]:
        for place, record in self._records():
            yield record if isinstance(record, RecipeError) else self._field(record, place)

    def _records(self) -> Iterator[tuple[str, dict[str, Any] | RecipeError]]:
        """Parse each line that is not blank, if these are JSON lines; give its place, too."""
        if not self._has_kind(RECORDS):
            return
        begin = f" (counted from byte {self.start:,})" if self.start else ""
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
        return f'each line is one JSON object, as {{"{self.column}": "..."}}'

    def _field(self, record: Mapping[str, Any], place: str) -> Document | RecipeError:
        text, remedy = record.get(self.column), self._remedy
        if not isinstance(text, str):
            return RecipeError(self.where, f"{place} has no text", remedy)
        try:
            text.encode()
        except UnicodeEncodeError:
            problem = f"{place} escapes half a character (a lone surrogate)"
            return RecipeError(self.where, problem, remedy)
        metadata = record.get("metadata")
        return Document(text, metadata=metadata if isinstance(metadata, dict) else {})


def expand_pattern(pattern: str, where: str) -> list[Path]:
    """Find the files of a pattern relative to the current folder, or the one of that name.

    Raises:
        RecipeError: there is none, or what has the name is a pipe or a device.
    """
    path = Path(pattern)
    hits = [path] if os.path.lexists(path) else []
    if not hits and PATTERN_SIGNS & set(str(path)):
        anchor = Path(path.anchor)
        hits = sorted(anchor.glob(str(path.relative_to(anchor))))
    if not hits:
        remedy = f"paths are relative to the current folder, {Path.cwd()}"
        raise RecipeError(where, f"{pattern} names no file", remedy)
    for hit in hits:
        if not hit.is_dir():  # of a folder others say what to write
            check_regular(hit, where)
    return hits
