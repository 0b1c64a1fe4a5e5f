"""Read the text of a source: document by document, strictly UTF-8, never as a whole.

In a ``.txt`` file a document is a paragraph, ended by a blank line; in a ``.jsonl`` file it is
a field of a line. Both may be compressed. pyarrow unpacks: it notices a stream that ends too
early, which Python's own reader of Zstandard does not.
"""

import io
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from components.data.files import FileRecord, HashFile, check_regular, hash_file
from components.errors import RecipeError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PATTERN_SIGNS = frozenset("*?[")
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
KINDS = (
    *(f"{kind}{packed}" for kind in (".txt", ".jsonl") for packed in ("", *COMPRESSIONS)),
    ".parquet",
)
MOST_LINE_BYTES = 1 << 28  # a longer line is more likely a broken file than a document
READ_BYTES = 1 << 20
UNKNOWN = "unknown"  # language


def kind_of(name: str) -> str | None:
    """Return the end of ``name`` that says its format, as ``.jsonl.gz``, if one does."""
    return next((kind for kind in KINDS if name.endswith(kind)), None)


def open_unpacked(path: Path) -> io.BufferedReader:
    """Open a file as the bytes of its text; reading raises ``OSError`` where it is damaged."""
    if path.suffix not in COMPRESSIONS:
        return path.open("rb")
    import pyarrow  # slow to import: who reads plain text does not wait for it

    stream: Any = pyarrow.input_stream(str(path), compression=COMPRESSIONS[path.suffix])
    return io.BufferedReader(stream, READ_BYTES)


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
            RecipeError: see :meth:`items`; an invalid document, or no text.
        """
        empty = True
        for item in self.items():
            if isinstance(item, RecipeError):
                raise item
            if item.text.strip():
                empty = False
                yield item
        if empty and self.if_empty is not None:
            raise self._error("holds no text", self.if_empty)

    def _error(self, problem: str, remedy: str) -> RecipeError:
        return RecipeError(self.where, f"{self.name} {problem}", remedy)


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
        is_jsonl = (kind_of(self.path.name) or "").startswith(".jsonl")
        return self._fields() if is_jsonl else self._paragraphs()

    def _lines(self) -> Iterator[str | RecipeError]:
        offset = self.start  # in the bytes of the text, unpacked
        with open_unpacked(self.path) as file:
            if offset:
                file.seek(offset)
            while (self.end is None or offset < self.end) and (
                line := self._read_line(file, offset)
            ):
                marked = offset == 0 and line.startswith(BYTE_ORDER_MARK)
                start = len(BYTE_ORDER_MARK) if marked else 0
                try:
                    yield line[start:].decode().rstrip("\r\n")
                except UnicodeDecodeError as error:
                    yield self._error(
                        f"is not UTF-8 at byte {offset + start + error.start:,}",
                        "convert it, for example with iconv -t UTF-8",
                    )
                offset += len(line)

    def _read_line(self, file: BinaryIO, offset: int) -> bytes:
        try:
            line = file.readline(MOST_LINE_BYTES + 1)
        except OSError as error:
            problem = f"is damaged behind byte {offset:,} of its text: {error}"
            raise self._error(problem, "copy it anew") from error
        if len(line) > MOST_LINE_BYTES:
            problem = f"has a line of more than {MOST_LINE_BYTES:,} bytes at byte {offset:,}"
            raise self._error(problem, "part it into documents")
        return line

    def _paragraphs(self) -> Iterator[Document | RecipeError]:
        """Join lines up to a blank one; the first invalid line makes its paragraph invalid."""
        paragraph: list[str | RecipeError] = []
        size = 0
        for line in itertools.chain(self._lines(), [""]):
            if isinstance(line, RecipeError) or line.strip():
                paragraph.append(line)
                size += len(line) + 1 if isinstance(line, str) else 0
                if size > MOST_LINE_BYTES:
                    problem = f"has a paragraph of more than {MOST_LINE_BYTES:,} characters"
                    raise self._error(problem, "split it into documents by blank lines")
            elif paragraph:
                invalid = next((part for part in paragraph if not isinstance(part, str)), None)
                yield invalid or Document("\n".join(map(str, paragraph)))
                paragraph, size = [], 0

    def _fields(self) -> Iterator[Document | RecipeError]:
        for number, line in enumerate(self._lines(), start=1):
            if isinstance(line, RecipeError):
                yield line
            elif line.strip():
                yield self._field(line, number)

    def _field(self, line: str, number: int) -> Document | RecipeError:
        begin = f" (counted from byte {self.start:,})" if self.start else ""
        place = f"{self.name}{begin}:{number} line {number}"
        remedy = f'each line is one JSON object, as {{"{self.column}": "..."}}'
        try:
            tree = json.loads(line)
        except (ValueError, RecursionError) as error:
            return RecipeError(self.where, f"{place} is not JSON ({error})", remedy)
        text = tree.get(self.column) if isinstance(tree, dict) else None
        if not isinstance(text, str):
            return RecipeError(self.where, f"{place} has no text", remedy)
        try:
            text.encode()
        except UnicodeEncodeError:
            problem = f"{place} escapes half a character (a lone surrogate)"
            return RecipeError(self.where, problem, remedy)
        metadata = tree.get("metadata")
        return Document(text, metadata=metadata if isinstance(metadata, dict) else {})


def expand_pattern(pattern: str, where: str) -> list[Path]:
    """Find the files of a pattern relative to the current folder, or the one of that name.

    Raises:
        RecipeError: there is none, or what has the name is a pipe or a device.
    """
    path = Path(pattern)
    hits = [path] if path.exists() or path.is_symlink() else []
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
