"""The manifest of a prepared folder: what went in, what came out, and the hash of each file.

It is written last. A folder without a manifest is not prepared data.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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

    ``stages`` made the text, by pass; where there are none, the inputs were read as they are.
    """

    key: str
    tokenizer: TokenizerRecord
    held_out_fraction: float
    sources: Mapping[str, SourceRecord]
    stages: Mapping[str, StageRecord] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    def write(self, folder: Path) -> None:
        """Write ``manifest.json``, whole or not at all."""
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
            return _manifest(parse_json(path.read_bytes(), finite=True), path)
        except RecipeError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecipeError(str(path), f"is not a manifest ({error!r})", REBUILD) from error

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
        records = {record.name: record for record in self.tokenizer.files}
        for source in self.sources.values():
            for record in (*source.train, *source.held_out):
                records.setdefault(record.name, record)
        yield from records.values()


def _manifest(tree: dict[str, Any], path: Path) -> Manifest:
    version = tree["format_version"]
    if version != FORMAT_VERSION:
        problem = f"has format {version!r}, this version reads {FORMAT_VERSION}"
        raise RecipeError(str(path), problem, REBUILD)
    tokenizer = tree["tokenizer"]
    files = tuple(FileRecord(**one) for one in tokenizer["files"])
    return Manifest(
        key=tree["key"],
        tokenizer=TokenizerRecord(**{**tokenizer, "files": files}),
        held_out_fraction=tree["held_out_fraction"],
        sources={name: _source(node) for name, node in tree["sources"].items()},
        stages={name: _stage(node) for name, node in tree["stages"].items()},
    )


def _source(node: dict[str, Any]) -> SourceRecord:
    return SourceRecord(
        inputs=tuple(FileRecord(**one) for one in node["inputs"]),
        documents=node["documents"],
        train=tuple(TokenFileRecord(**one) for one in node["train"]),
        held_out=tuple(TokenFileRecord(**one) for one in node["held_out"]),
    )


def _stage(node: dict[str, Any]) -> StageRecord:
    sources = {name: StageCounts(**counts) for name, counts in node["sources"].items()}
    return StageRecord(key=node["key"], sources=sources)
