"""Read the text of a source: document by document, strictly UTF-8, never as a whole.

In a ``.txt`` file a document is a paragraph, ended by a blank line; in a ``.jsonl`` file it is
the field ``text`` of a line.
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from components.data.files import FileRecord, record_file
from components.errors import RecipeError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SUFFIXES = (".txt", ".jsonl")
PATTERN_SIGNS = frozenset("*?[")


class Document(Protocol):
    """A text; documents of one ``group`` stay together when some are held out."""

    @property
    def text(self) -> str: ...
    @property
    def group(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Text:
    """A document that is its own group: only its copies share its fate."""

    text: str

    @property
    def group(self) -> str:
        return self.text


class Input(Protocol):
    """Something that holds documents and can be read again and again."""

    def record(self) -> FileRecord: ...
    def documents(self) -> Iterator[Document]: ...
    def items(self) -> Iterator[Document | RecipeError]:
        """Read all documents, empty ones too; for an invalid one, say what is wrong with it."""
        ...


@dataclass(frozen=True)
class LocalFile:
    """A ``.txt`` or ``.jsonl`` file; ``where`` is the YAML path that named it.

    ``start`` and ``end`` bound a part of it, in bytes, that begins and ends with a document.
    """

    path: Path
    name: str
    where: str
    start: int = 0
    end: int | None = None

    def record(self) -> FileRecord:
        """Hash the file.

        Raises:
            RecipeError: it is missing or cannot be read.
        """
        try:
            record = record_file(self.path)
        except OSError as error:
            raise self._error(
                f"cannot be read: {error.strerror}", "name a readable file"
            ) from error
        return FileRecord(name=self.name, sha256=record.sha256, bytes=record.bytes)

    def documents(self) -> Iterator[Document]:
        """Read the documents that are more than white space.

        Raises:
            RecipeError: no text in the file, bytes that are not UTF-8, or a line of a
                ``.jsonl`` file that is no JSON object with a text.
        """
        empty = True
        for item in self.items():
            if isinstance(item, RecipeError):
                raise item
            if item.text.strip():
                empty = False
                yield item
        if empty:
            raise self._error("holds no text", "leave it out, or fill it")

    def items(self) -> Iterator[Document | RecipeError]:
        """Read all documents, empty ones too; for an invalid one, say what is wrong with it."""
        for item in self._fields() if self.path.suffix == ".jsonl" else self._paragraphs():
            yield Text(item) if isinstance(item, str) else item

    def _lines(self) -> Iterator[str | RecipeError]:
        offset = self.start
        with self.path.open("rb") as file:
            file.seek(offset)
            for line in file:
                if self.end is not None and offset >= self.end:
                    return
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

    def _paragraphs(self) -> Iterator[str | RecipeError]:
        """Join lines up to a blank one; the first invalid line makes its paragraph invalid."""
        paragraph: list[str | RecipeError] = []
        for line in itertools.chain(self._lines(), [""]):
            if isinstance(line, RecipeError) or line.strip():
                paragraph.append(line)
            elif paragraph:
                invalid = next((part for part in paragraph if not isinstance(part, str)), None)
                yield invalid or "\n".join(map(str, paragraph))
                paragraph = []

    def _fields(self) -> Iterator[str | RecipeError]:
        for number, line in enumerate(self._lines(), start=1):
            if isinstance(line, RecipeError):
                yield line
            elif line.strip():
                try:
                    yield self._field(line, number)
                except RecipeError as error:
                    yield error

    def _field(self, line: str, number: int) -> str:
        remedy = 'each line is one JSON object, as {"text": "..."}'
        try:
            tree = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._error(f"line {number} is not JSON ({error})", remedy, number) from error
        text = tree.get("text") if isinstance(tree, dict) else None
        if not isinstance(text, str):
            raise self._error(f"line {number} has no text", remedy, number)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise self._error(
                f"line {number} escapes half a character (a lone surrogate)", remedy, number
            ) from error
        return text

    def _error(self, problem: str, remedy: str, line: int | None = None) -> RecipeError:
        place = self.name if line is None else f"{self.name}:{line}"
        if self.start and line is not None:
            place = f"{self.name} (counted from byte {self.start:,}):{line}"
        return RecipeError(self.where, f"{place} {problem}", remedy)


def open_files(patterns: tuple[str, ...], where: str) -> Iterator[LocalFile]:
    """Expand file patterns relative to the current folder; each file is given once, sorted.

    Raises:
        RecipeError: a pattern without a file, a folder, or a suffix that is not read.
    """
    found = {path: None for pattern in patterns for path in _expand(pattern, where)}
    for path in found:
        if path.is_dir():
            raise RecipeError(
                where, f"{path} is a folder", f"give a pattern, as {path}/*.jsonl"
            )
        if path.suffix not in SUFFIXES:
            raise RecipeError(
                where, f"{path} is neither .txt nor .jsonl", "convert it, or correct its name"
            )
        yield LocalFile(path=path, name=str(path), where=where)


def _expand(pattern: str, where: str) -> list[Path]:
    path = Path(pattern)
    if path.exists() or path.is_symlink():
        return [path]
    anchor = Path(path.anchor)
    hits = PATTERN_SIGNS & set(pattern) and sorted(anchor.glob(str(path.relative_to(anchor))))
    if not hits:
        raise RecipeError(
            where,
            f"{pattern} names no file",
            f"paths are relative to the current folder, {Path.cwd()}",
        )
    return list(hits)
