"""Manifest of a prepared folder: its inputs, its outputs, and the hash of each file.

The manifest is written last. A folder without a manifest is not prepared data.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from components.data.files import REBUILD, FileRecord, verify_file, write_atomically
from components.data.token_file import TokenFileRecord, little_endian
from components.errors import RecipeError
from components.json_file import parse_json, read_bounded
from components.ranges import Count, Tokens

FORMAT_VERSION = 2
FILE_NAME = "manifest.json"
MOST_BYTES = 1 << 28
MOST_NAME_BYTES = 255  # of a file name; the limit of common file systems


@dataclass(frozen=True)
class TokenizerRecord:
    """The tokenizer of the ids: its settings from the recipe, and its files."""

    settings: Mapping[str, Any]
    files: tuple[FileRecord, ...]
    vocab_size: Count
    eod_id: Tokens


@dataclass(frozen=True)
class SourceRecord:
    """One source: its inputs (paths or embedded corpora) and its token files, in order."""

    inputs: tuple[FileRecord, ...]
    documents: Tokens
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
    """Input and output counts of one stage for one source; ``removed`` is by reason.

    ``languages`` counts output documents; ``replaced`` counts places in them, by kind.
    """

    documents_in: Tokens
    documents_out: Tokens
    bytes_in: Tokens
    bytes_out: Tokens
    languages: Mapping[str, Tokens]
    removed: Mapping[str, Tokens]
    replaced: Mapping[str, Tokens]


@dataclass(frozen=True)
class StageRecord:
    """One stage of the preparation of raw text: its key, and its counts by source."""

    key: str
    sources: Mapping[str, StageCounts]


@dataclass(frozen=True)
class Manifest:
    """Manifest of a prepared folder; ``key`` hashes everything that affects the files' content.

    ``stages`` produced the text. If it is empty, the inputs were read unchanged.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")  # applies to nested classes too

    key: str
    tokenizer: TokenizerRecord
    held_out_fraction: float
    sources: Mapping[str, SourceRecord]
    stages: Mapping[str, StageRecord] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    def save_manifest(self, folder: Path) -> None:
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"
        write_atomically(folder / FILE_NAME, text)

    @classmethod
    def from_folder(cls, folder: Path) -> "Manifest":
        """Read the manifest of a prepared folder, without checking the folder's files."""
        path = folder / FILE_NAME
        if not path.is_file():
            problem = "does not exist: the preparation did not finish"
            raise RecipeError(str(path), problem, REBUILD)
        try:
            tree = parse_json(read_bounded(path, MOST_BYTES), finite=True)
            version = tree["format_version"]
            if version == FORMAT_VERSION:  # it requires the key "stages"
                manifest = _adapter().validate_python({**tree, "stages": tree["stages"]})
                manifest._check()
                return manifest
        except (ValueError, KeyError, TypeError) as error:
            reason = repr(error)
            if isinstance(error, ValidationError):
                reason = "; ".join(
                    f"{fault['loc']}: {fault['msg']}" for fault in error.errors()
                )
            raise RecipeError(str(path), f"is not a manifest ({reason})", REBUILD) from error
        problem = f"has format {version!r}, but this version reads format {FORMAT_VERSION}"
        raise RecipeError(str(path), problem, REBUILD)

    def _check(self) -> None:
        """Raise a ValueError if fields contradict each other."""
        if self.tokenizer.eod_id >= self.tokenizer.vocab_size:
            raise ValueError(f"eod_id {self.tokenizer.eod_id:,} is outside the vocabulary")
        for source in self.sources.values():
            for part in (*source.train, *source.held_out):
                end = part.first_token + part.tokens
                if end * little_endian(part.dtype).itemsize > part.bytes:
                    raise ValueError(f"{part.name!r} has fewer than {end:,} tokens")
        for record in self.list_files():
            name = record.name
            is_plain = Path(name).name == name != ".." and name.isprintable()
            is_valid = is_plain and len(name.encode()) <= MOST_NAME_BYTES
            if not (is_valid or Path(name).is_absolute()):
                raise ValueError(f"{name!r} is not the name of a file in the folder")

    def check_recipe(
        self,
        folder: Path,
        *,
        names: Iterable[str],
        vocab_size: int,
        tokens: Collection[str],
        root: str | None = None,
    ) -> None:
        """Compare the manifest with the recipe that uses the folder.

        ``names`` are the recipe's sources. ``tokens`` are the recipe's prefixes and patterns of
        token files that are read in place, relative to ``root`` (default: current folder). Any
        other file outside the folder is a RecipeError.
        """
        path, stored_size = str(folder / FILE_NAME), self.tokenizer.vocab_size
        if stored_size != vocab_size:
            problem = f"has {stored_size:,} ids, but tokenizer.vocab_size is {vocab_size:,}"
            raise RecipeError(path, problem, REBUILD)
        if missing := sorted({*names} - self.sources.keys()):
            raise RecipeError(path, f"lacks the source {missing[0]}", REBUILD)
        prefixes = (pattern.removesuffix(".idx").removesuffix(".bin") for pattern in tokens)
        allowed = [f"{Path(root or Path.cwd(), prefix)}.bin" for prefix in prefixes]
        for name in (record.name for record in self.list_files()):
            is_named = any(fnmatchcase(name, pattern) for pattern in allowed)
            if Path(name).is_absolute() and (".." in Path(name).parts or not is_named):
                problem = f"reads {name}, which is not in the recipe"
                raise RecipeError(path, problem, REBUILD)

    def verify_files(self, folder: Path, *, contents: bool) -> None:
        """Compare every listed file with its record; see :func:`verify_file`."""
        for record in self.list_files():
            verify_file(folder, record, contents=contents)

    def list_files(self) -> Iterator[FileRecord]:
        """Yield the record of each file except the manifest, each once.

        Token files that are read in place, outside the folder, have absolute paths as names.
        """
        sources = ((*source.train, *source.held_out) for source in self.sources.values())
        records = [*self.tokenizer.files, *chain.from_iterable(sources)]
        yield from {record.name: record for record in records}.values()


@cache
def _adapter() -> TypeAdapter[Manifest]:
    return TypeAdapter(Manifest)
