"""Read the text of a source: document by document, strictly UTF-8, never as a whole.

In a ``.txt`` file a document is a paragraph, ended by a blank line; in a ``.jsonl`` file it is
a field of a line. Both may be compressed; Parquet and datasets are read elsewhere.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from components.data.files import FileRecord, check_regular
from components.errors import RecipeError
from data_prep.formats import MOST_LINE_BYTES, kind_of, open_unpacked
from data_prep.hashes import HashFile, hash_file

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PATTERN_SIGNS = frozenset("*?[")


class Document(Protocol):
    """A text; documents of one ``group`` stay together when some are held out."""

    @property
    def text(self) -> str: ...
    @property
    def group(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Text:
    """A document that is its own group: only its copies share its fate.

    ``metadata`` is what a record says of its text in a field of that name.
    """

    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def group(self) -> str:
        return self.text


class Input(Protocol):
    """Something that holds documents and can be read again and again."""

    def record(self, hashed: HashFile = hash_file) -> FileRecord: ...
    def documents(self) -> Iterator[Document]: ...
    def items(self) -> Iterator[Document | RecipeError]:
        """Read all documents, empty ones too; for an invalid one, say what is wrong with it."""
        ...


def only_text(
    items: Iterable[Document | RecipeError], nothing: RecipeError
) -> Iterator[Document]:
    """Leave out what is white space; raise the first error among ``items``, or ``nothing``."""
    empty = True
    for item in items:
        if isinstance(item, RecipeError):
            raise item
        if item.text.strip():
            empty = False
            yield item
    if empty:
        raise nothing


@dataclass(frozen=True)
class LocalFile:
    """A file of text; ``where`` is the YAML path that named it, ``column`` its texts' field.

    ``start`` and ``end`` bound a part of it, in bytes, that begins and ends with a document.
    """

    path: Path
    name: str
    where: str
    column: str
    start: int = 0
    end: int | None = None

    def record(self, hashed: HashFile = hash_file) -> FileRecord:
        """Hash the file.

        Raises:
            RecipeError: it is missing or cannot be read.
        """
        try:
            sha256, size = hashed(self.path, 0, None), self.path.stat().st_size
        except OSError as error:
            raise self._error(
                f"cannot be read: {error.strerror}", "name a readable file"
            ) from error
        return FileRecord(name=self.name, sha256=sha256, bytes=size)

    def documents(self) -> Iterator[Document]:
        """Read the documents that are more than white space.

        Raises:
            RecipeError: no text in the file, bytes that are not UTF-8, a line of a ``.jsonl``
                file that is no JSON object with a text, a line beyond ``MOST_LINE_BYTES``, or
                a compressed file that is damaged or cut short.
        """
        return only_text(self.items(), self._error("holds no text", "leave it out, or fill it"))

    def items(self) -> Iterator[Document | RecipeError]:
        """Read all documents, empty ones too; for an invalid one, say what is wrong with it.

        Raises:
            RecipeError: the file is damaged, or has a line beyond ``MOST_LINE_BYTES``.
        """
        is_jsonl = (kind_of(self.path.name) or "").startswith(".jsonl")
        return self._fields() if is_jsonl else self._paragraphs()

    def _lines(self) -> Iterator[str | RecipeError]:
        offset = self.start
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
        """Read on; ``offset`` counts the bytes of the text, unpacked."""
        try:
            line = file.readline(MOST_LINE_BYTES + 1)
        except OSError as error:
            raise self._error(
                f"is damaged behind byte {offset:,} of its text: {error}", "copy it anew"
            ) from error
        if len(line) > MOST_LINE_BYTES:
            raise self._error(
                f"has a line of more than {MOST_LINE_BYTES:,} bytes at byte {offset:,}",
                "part it into documents",
            )
        return line

    def _paragraphs(self) -> Iterator[Text | RecipeError]:
        """Join lines up to a blank one; the first invalid line makes its paragraph invalid."""
        paragraph: list[str | RecipeError] = []
        for line in itertools.chain(self._lines(), [""]):
            if isinstance(line, RecipeError) or line.strip():
                paragraph.append(line)
            elif paragraph:
                invalid = next((part for part in paragraph if not isinstance(part, str)), None)
                yield invalid or Text("\n".join(map(str, paragraph)))
                paragraph = []

    def _fields(self) -> Iterator[Text | RecipeError]:
        for number, line in enumerate(self._lines(), start=1):
            if isinstance(line, RecipeError):
                yield line
            elif line.strip():
                try:
                    yield self._field(line, number)
                except RecipeError as error:
                    yield error

    def _field(self, line: str, number: int) -> Text:
        remedy = f'each line is one JSON object, as {{"{self.column}": "..."}}'
        try:
            tree = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._error(f"line {number} is not JSON ({error})", remedy, number) from error
        text = tree.get(self.column) if isinstance(tree, dict) else None
        if not isinstance(text, str):
            raise self._error(f"line {number} has no text", remedy, number)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise self._error(
                f"line {number} escapes half a character (a lone surrogate)", remedy, number
            ) from error
        metadata = tree.get("metadata")
        return Text(text, metadata if isinstance(metadata, dict) else {})

    def _error(self, problem: str, remedy: str, line: int | None = None) -> RecipeError:
        place = self.name if line is None else f"{self.name}:{line}"
        if self.start and line is not None:
            place = f"{self.name} (counted from byte {self.start:,}):{line}"
        return RecipeError(self.where, f"{place} {problem}", remedy)


def expand_pattern(pattern: str, where: str) -> list[Path]:
    """Find the files of a pattern relative to the current folder, or the one of that name.

    Raises:
        RecipeError: there is none, or what has the name is a pipe or a device.
    """
    path = Path(pattern)
    hits = [path] if path.exists() or path.is_symlink() else _matching(path)
    if not hits:
        raise RecipeError(
            where,
            f"{pattern} names no file",
            f"paths are relative to the current folder, {Path.cwd()}",
        )
    for hit in hits:
        if not hit.is_dir():  # of a folder others say what to write
            check_regular(hit, where)
    return hits


def _matching(path: Path) -> list[Path]:
    if not PATTERN_SIGNS & set(str(path)):
        return []
    anchor = Path(path.anchor)
    return sorted(anchor.glob(str(path.relative_to(anchor))))
