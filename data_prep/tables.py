"""Texts in a column of a table: Parquet files, and what the library ``datasets`` opens.

That is a name on the hub, or a folder of data files; never with code out of the dataset: the
library itself refuses a folder that needs it. What a dataset says of itself (README, schemas)
may name files elsewhere and addresses: of a folder only regular files inside are read, of the
hub only files there, and only the column of texts is decoded.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from components.config.schema.data import HubDataset
from components.data.files import FileRecord, HashFile, hash_file
from components.errors import RecipeError
from components.run.ownership import check_inside
from data_prep.read import Document, Input, LocalFile

ROWS = 256
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
CARDS = ("README.md", ".huggingface.yaml")  # in which a folder describes itself
MOST_CARD_BYTES = 1 << 20
# What the library reads tables of texts with; others unpack archives, or open what rows name.
READERS = frozenset({"arrow", "cache", "csv", "json", "parquet", "text"})
ARCHIVES = (".zip", ".tar", ".7z", ".rar", ".tgz")


def _check_column(column: str, columns: Sequence[str], name: str, where: str) -> None:
    if column not in columns:
        remedy = f"its columns are {', '.join(columns)}"
        raise RecipeError(where, f"{name} has no column {column!r}", remedy)


@dataclass(frozen=True)
class ParquetFile(LocalFile):
    """A column of strings; ``column`` names it."""

    def items(self) -> Iterator[Document | RecipeError]:
        for number, text in enumerate(self._texts(), start=1):
            if text is None:
                yield self._error(f"row {number:,} has no text", "leave such rows out")
            else:
                yield Document(text)

    def _texts(self) -> Iterator[str | None]:
        import pyarrow.parquet  # slow to import: only who reads one pays

        done, open_file = 0, pyarrow.parquet.ParquetFile
        try:
            # A dictionary stays one: its values may be large, and each row may repeat one.
            options: Any = {
                "read_dictionary": [self.column],
                "page_checksum_verification": True,
            }
            with open_file(self.path, page_checksum_verification=True) as file:
                self._check_strings(file.schema_arrow)
            with open_file(self.path, **options) as file:
                for batch in file.iter_batches(batch_size=ROWS, columns=[self.column]):
                    yield from (value.as_py() for value in batch.column(0))
                    done += len(batch)
        except RecipeError:
            raise
        except (OSError, ValueError) as error:  # bytes that are no UTF-8 are a ValueError
            problem = f"is damaged behind row {done:,}: {error}"
            raise self._error(problem, "copy it anew") from error

    def _check_strings(self, schema: Any) -> None:
        import pyarrow  # see above

        where = f"{self.where.removesuffix('.files')}.column"
        _check_column(self.column, schema.names, self.name, where)
        kind = schema.field(self.column).type
        if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
            problem = f"{self.name} holds no strings in {self.column!r}, but {kind}"
            raise RecipeError(where, problem, "name another column")


@dataclass(frozen=True)
class HubInput(Input):
    """One split of a dataset; streamed, it is fetched anew at each reading and kept nowhere.

    Its record hashes the revision or, of local files, their sizes and times: not their content.
    """

    name: str
    where: str
    column: str
    dataset: HubDataset
    if_empty: ClassVar[str | None] = "leave it out"

    def record(self, hashed: HashFile = hash_file) -> FileRecord:
        with self._opened() as builder:
            tree = [builder.hash, builder.config_id, self.dataset.split, self.column]
        digest = hashlib.sha256(json.dumps(tree).encode()).hexdigest()
        return FileRecord(name=f"dataset:{self.name}", sha256=digest, bytes=0)

    def items(self) -> Iterator[Document | RecipeError]:
        for number, text in enumerate(self._texts(), start=1):
            if isinstance(text, str):
                yield Document(text)
            else:
                yield self._error(f"row {number:,} has no text", "name another column")

    def _texts(self) -> Iterator[Any]:
        with self._opened() as builder:
            self._check_values(builder.info.features)
            if self.dataset.streaming:
                rows = builder.as_streaming_dataset(split=self.dataset.split)
            else:
                builder.download_and_prepare()
                rows = builder.as_dataset(split=self.dataset.split)
            if rows.column_names:
                where = f"{self.where.removesuffix('.dataset')}.column"
                _check_column(self.column, rows.column_names, self.name, where)
            self._check_values(rows.features)
            rows = rows.select_columns([self.column])
            for batch in rows.iter(batch_size=ROWS):
                yield from batch.get(self.column) or [None]

    def _check_values(self, features: Mapping[str, Any] | None) -> None:
        """Refuse a column whose values name files that the library would open."""
        import datasets

        if not isinstance(
            (features or {}).get(self.column, datasets.Value("string")), datasets.Value
        ):
            raise self._error(
                f"has no texts in the column {self.column!r}", "name another column"
            )

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Open the dataset, and tell what goes wrong with it from there on."""
        one, folder = self.dataset, Path(self.dataset.path)
        try:
            if folder.is_dir():
                check_inside(folder, self.where)
                _check_cards(folder)
            elif not HUB_NAME.fullmatch(one.path):
                raise FileNotFoundError("is neither a folder nor a name on the hub")
            import datasets  # slow to import: only who reads one pays
            from datasets.exceptions import DatasetsError

            datasets.disable_progress_bars()
            with _as_value_errors(DatasetsError, TypeError, AttributeError, KeyError):
                builder = datasets.load_dataset_builder(
                    one.path, one.name, revision=one.revision
                )
                _check_files(builder, folder)
                yield builder
        except RecipeError:
            raise
        except (OSError, ValueError, RuntimeError, yaml.YAMLError) as error:
            reason = error.__cause__ or error
            first = str(reason).strip().splitlines()[:1] or [type(reason).__name__]
            remedy = "correct path, name, split or revision; datasets with code are not read"
            if isinstance(error, ConnectionError):
                remedy = "without a network name a folder of its files as path, or load it "
                remedy += "once on a machine with one and carry the cache over (HF_HOME)"
            raise self._error(f"cannot be read: {first[0]}", remedy) from error


@contextmanager
def _as_value_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Turn what the library raises into ValueError; odd values of a README are of any kind."""
    try:
        yield
    except kinds as error:
        raise ValueError(str(error)) from error.__cause__ or error


def _check_cards(folder: Path) -> None:
    """Raise ValueError where a folder's own description names files outside, or addresses."""
    for file in (folder / name for name in CARDS):
        if not file.is_file():
            continue
        with file.open("rb") as stream:
            text = stream.read(MOST_CARD_BYTES + 1).decode()
        if len(text) > MOST_CARD_BYTES:
            raise ValueError(f"{file.name} has more than {MOST_CARD_BYTES:,} bytes")
        if file.suffix == ".md":
            front = re.match(r"\s*---[\r\n]+(.*?)[\r\n]+---", text, re.DOTALL)
            text = front[1] if front else ""
        for token in yaml.scan(text, yaml.SafeLoader):
            if isinstance(token, yaml.AliasToken):
                raise ValueError(f"{file.name} has aliases")
        tree = yaml.safe_load(text)
        for place in _texts(tree.get("configs") if isinstance(tree, dict) else None):
            odd = place.startswith(("/", "~")) or ".." in Path(place).parts
            if odd or "://" in place or "::" in place:
                raise ValueError(f"{file.name} names {place!r}, which is not in the folder")


def _texts(tree: object) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict | list):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from _texts(item)


def _check_files(builder: Any, folder: Path) -> None:
    """Raise ValueError unless all files are in the folder, or on the hub, and hold tables."""
    reader = type(builder).__module__.rpartition(".")[2]
    if reader not in READERS:
        raise ValueError(f"holds no tables of texts: the library takes it for {reader}")
    is_here = folder.is_dir()
    inside = f"{folder.resolve()}/" if is_here else "hf://datasets/"
    for files in (builder.config.data_files or {}).values():
        for file in map(str, files):
            packed = is_here and file.endswith(ARCHIVES)
            if not file.startswith(inside) or "::" in file or packed:
                raise ValueError(f"names {file}, which is no table in it")
