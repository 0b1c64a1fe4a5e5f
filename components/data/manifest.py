"""The manifest of a prepared folder: what went in, what came out, and the hash of each file.

It is written last. A folder without a manifest is not prepared data.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from components.data.files import REBUILD, FileRecord, replace_atomically, verify_file
from components.data.token_file import TokenFileRecord
from components.errors import RecipeError
from components.json_file import parse_json

FORMAT_VERSION = 2
FILE_NAME = "manifest.json"


@dataclass(frozen=True)
class TokenizerRecord:
    """Which tokenizer wrote the ids: its settings as in the recipe, and its files."""

    settings: Mapping[str, Any]
    files: tuple[FileRecord, ...]
    vocab_size: int
    eod_id: int


@dataclass(frozen=True)
class SourceRecord:
    """One source: what was read (paths or embedded corpora) and its token files, in order."""

    inputs: tuple[FileRecord, ...]
    documents: int
    train: tuple[TokenFileRecord, ...]
    held_out: tuple[TokenFileRecord, ...]

    @property
    def train_tokens(self) -> int:
        return sum(record.tokens for record in self.train)

    @property
    def held_out_tokens(self) -> int:
        return sum(record.tokens for record in self.held_out)


@dataclass(frozen=True)
class StageCounts:
    """What a pass over one source took in and gave out; the rest was removed, by reason.

    ``languages`` counts documents out; ``replaced`` counts places in them, by kind.
    """

    documents_in: int
    documents_out: int
    bytes_in: int
    bytes_out: int
    languages: Mapping[str, int]
    removed: Mapping[str, int]
    replaced: Mapping[str, int]


@dataclass(frozen=True)
class StageRecord:
    """One pass of the preparation of raw text: its key and its counts by source."""

    key: str
    sources: Mapping[str, StageCounts]


@dataclass(frozen=True)
class Manifest:
    """Manifest of a prepared folder; ``key`` hashes all that decides the files' content.

    ``stages`` made the text; where there are none, the inputs were read as they are.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")  # also for what is inside

    key: str
    tokenizer: TokenizerRecord
    held_out_fraction: float
    sources: Mapping[str, SourceRecord]
    stages: Mapping[str, StageRecord] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    def write(self, folder: Path) -> None:
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"
        with replace_atomically(folder / FILE_NAME) as file:
            file.write(text.encode())

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read the manifest of a prepared folder; its files are not looked at.

        Raises:
            RecipeError: there is none, it is not JSON, or another version wrote it.
        """
        path = folder / FILE_NAME
        if not path.is_file():
            problem = "there is no manifest: nothing complete was prepared"
            raise RecipeError(str(path), problem, REBUILD)
        try:
            tree = parse_json(path.read_bytes(), finite=True)
            version = tree["format_version"]
            if version == FORMAT_VERSION:  # whose files name stages, if only none
                return TypeAdapter(cls).validate_python({**tree, "stages": tree["stages"]})
        except (ValueError, KeyError, TypeError) as error:
            reason = repr(error)
            if isinstance(error, ValidationError):
                reason = "; ".join(f"{one['loc']}: {one['msg']}" for one in error.errors())
            raise RecipeError(str(path), f"is not a manifest ({reason})", REBUILD) from error
        problem = f"has format {version!r}, this version reads {FORMAT_VERSION}"
        raise RecipeError(str(path), problem, REBUILD)

    def verify(self, folder: Path, *, contents: bool) -> None:
        """Compare every listed file with its record; see :func:`verify_file`.

        Raises:
            RecipeError: a file is missing, truncated or edited.
        """
        for record in self.files():
            verify_file(folder, record, contents=contents)

    def files(self) -> Iterator[FileRecord]:
        """List the files of the folder, other than the manifest itself, each of them once.

        Token files that are read in place, outside of the folder, have absolute paths as names.
        """
        sources = ((*one.train, *one.held_out) for one in self.sources.values())
        records = [*self.tokenizer.files, *chain.from_iterable(sources)]
        yield from {record.name: record for record in records}.values()
