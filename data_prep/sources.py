"""From a recipe's source to inputs that were found, opened and hashed."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from components.data.files import FileRecord
from components.errors import RecipeError
from data_prep.embedded import open_embedded
from data_prep.files import open_files
from data_prep.formats import kind_of
from data_prep.hashes import HashFile, hash_file
from data_prep.hub import HubInput, HubName
from data_prep.read import Document, Input
from data_prep.split import GroupRange
from data_prep.token_source import TokenSource, open_token_source

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class SourceInput(Protocol):
    """Where the text of one source is, as the recipe's section says it."""

    @property
    def files(self) -> tuple[str, ...]: ...
    @property
    def embedded(self) -> str | None: ...
    @property
    def dataset(self) -> HubName | None: ...
    @property
    def column(self) -> str: ...
    @property
    def tokens(self) -> tuple[str, ...]: ...
    @property
    def eod(self) -> Literal["appended", "absent"]: ...


@dataclass(frozen=True)
class OpenSource:
    """The inputs of one source and the hash of each; ``groups`` where a pass has told them."""

    inputs: tuple[Input, ...]
    records: tuple[FileRecord, ...]
    column: str
    groups: GroupRange | None = None

    def identity(self) -> list[tuple[str, str | None, str]]:
        """Say what decides the text: contents, formats and column; not where the files lie."""
        return [(record.sha256, kind_of(record.name), self.column) for record in self.records]

    def documents(self) -> Iterator[Document]:
        """Read everything, from the beginning each time."""
        for text_input in self.inputs:
            yield from text_input.documents()


def open_source(name: str, source: SourceInput, hashed: HashFile = hash_file) -> OpenSource:
    """Find and hash all inputs of a source; ``hashed`` may know hashes from before.

    Raises:
        RecipeError: an input that is missing or unreadable, or no input at all.
    """
    inputs = find_inputs(name, source)
    records = tuple(text_input.record(hashed) for text_input in inputs)
    return OpenSource(inputs=inputs, records=records, column=source.column)


def find_inputs(name: str, source: SourceInput) -> tuple[Input, ...]:
    """List the inputs of a source: the embedded corpus first, then the files.

    Raises:
        RecipeError: an input that is missing, or no input at all.
    """
    where = f"data.sources.{name}"
    if not NAME.fullmatch(name):
        raise RecipeError(
            where, "the name becomes a file name", "use letters, digits, _ . and - in it"
        )
    inputs: list[Input] = list(open_files(source.files, f"{where}.files", source.column))
    if source.embedded is not None:
        inputs.insert(0, open_embedded(source.embedded, f"{where}.embedded"))
    if source.dataset is not None:
        inputs.append(HubInput(source.dataset, source.column, f"{where}.dataset"))
    if not inputs:
        raise RecipeError(
            where,
            "has no text: neither files nor a dataset nor an embedded corpus",
            f"name your own, {where}.files=[...], or leave the source out",
        )
    return tuple(inputs)


def open_sources(
    sources: Mapping[str, SourceInput | OpenSource], hashed: HashFile = hash_file
) -> dict[str, OpenSource | TokenSource]:
    """Open all that are not yet, in the order of their names: texts, or token files.

    Raises:
        RecipeError: an input that is missing or unreadable, or no input at all.
    """
    opened: dict[str, OpenSource | TokenSource] = {}
    for name, source in sorted(sources.items()):
        if isinstance(source, OpenSource):
            opened[name] = source
        elif source.tokens:
            opened[name] = open_token_source(name, source, hashed)
        else:
            opened[name] = open_source(name, source, hashed)
    return opened
