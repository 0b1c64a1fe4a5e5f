"""The manifest of a prepared folder: what went in, what came out, and the hash of each file.

It is written last. A folder without a manifest is not prepared data.
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

from components.data.files import REBUILD, FileRecord, replace_atomically, verify_file
from components.data.token_file import TokenFileRecord, little_endian
from components.errors import RecipeError
from components.json_file import parse_json, read_bounded
from components.ranges import Count, Tokens

FORMAT_VERSION = 2
FILE_NAME = "manifest.json"
MOST_BYTES = 1 << 28
MOST_NAME_BYTES = 255  # of a file's name, on any system


@dataclass(frozen=True)
class TokenizerRecord:
    """Which tokenizer wrote the ids: its settings as in the recipe, and its files."""

    settings: Mapping[str, Any]
    files: tuple[FileRecord, ...]
    vocab_size: Count
    eod_id: Tokens


@dataclass(frozen=True)
class SourceRecord:
    """One source: what was read (paths or embedded corpora) and its token files, in order."""

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
    """What a pass over one source took in and gave out; the rest was removed, by reason.

    ``languages`` counts documents out; ``replaced`` counts places in them, by kind.
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
            RecipeError: there is none, it is not JSON, another version wrote it, or it
                contradicts itself.
        """
        path = folder / FILE_NAME
        if not path.is_file():
            problem = "there is no manifest: nothing complete was prepared"
            raise RecipeError(str(path), problem, REBUILD)
        try:
            tree = parse_json(read_bounded(path, MOST_BYTES), finite=True)
            version = tree["format_version"]
            if version == FORMAT_VERSION:  # whose files name stages, if only none
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
        problem = f"has format {version!r}, this version reads {FORMAT_VERSION}"
        raise RecipeError(str(path), problem, REBUILD)

    def _check(self) -> None:
        """Raise a ValueError for statements that contradict each other."""
        if self.tokenizer.eod_id >= self.tokenizer.vocab_size:
            raise ValueError(f"eod_id {self.tokenizer.eod_id:,} is outside the vocabulary")
        for source in self.sources.values():
            for part in (*source.train, *source.held_out):
                end = part.first_token + part.tokens
                if end * little_endian(part.dtype).itemsize > part.bytes:
                    raise ValueError(f"{part.name!r} holds less than {end:,} tokens")
        for record in self.files():
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
        """Compare it with the recipe that reads the folder.

        ``names`` are the recipe's sources. ``tokens`` are prefixes and patterns of the token
        files that are read in place, relative to ``root``, which is the current folder.

        Raises:
            RecipeError: another vocabulary, a source that is missing, or a file outside of the
                folder that the recipe does not name.
        """
        path, stored_size = str(folder / FILE_NAME), self.tokenizer.vocab_size
        if stored_size != vocab_size:
            problem = f"has ids below {stored_size:,}, tokenizer.vocab_size is {vocab_size:,}"
            raise RecipeError(path, problem, REBUILD)
        if missing := sorted({*names} - self.sources.keys()):
            raise RecipeError(path, f"lacks the source {missing[0]}", REBUILD)
        prefixes = (pattern.removesuffix(".idx").removesuffix(".bin") for pattern in tokens)
        allowed = [f"{Path(root or Path.cwd(), prefix)}.bin" for prefix in prefixes]
        for name in (record.name for record in self.files()):
            is_named = any(fnmatchcase(name, pattern) for pattern in allowed)
            if Path(name).is_absolute() and (".." in Path(name).parts or not is_named):
                problem = f"reads {name}, which the recipe does not name"
                raise RecipeError(path, problem, REBUILD)

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


@cache
def _adapter() -> TypeAdapter[Manifest]:
    return TypeAdapter(Manifest)
