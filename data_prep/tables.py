"""Read texts from a table column: Parquet and Arrow files, and datasets of ``datasets``.

A dataset is a name on the hub or a folder of data files. Its code never runs: the library
rejects a dataset that needs code. Its README and schemas may name other files or addresses. So
only regular files inside the folder, or files of the hub, are read, and only the text column is
decoded. A folder that ``Dataset.save_to_disk`` wrote is read as Arrow files.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import yaml

from components.config.schema.data import HubDataset
from components.data.files import FileRecord, HashFile, hash_file
from components.errors import RecipeError
from components.json_file import read_bounded, read_mapping
from components.run.ownership import check_inside
from data_prep.read import Document, Input, LocalFile

ROWS = 256
SAVED, SAVED_SPLITS = "state.json", "dataset_dict.json"  # written by save_to_disk
TRAIN = "train"
MAGIC, STREAM_IN_FILE = b"ARROW1", 8
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
CARDS = ("README.md", ".huggingface.yaml")  # descriptions of a dataset folder
MOST_CARD_BYTES = 1 << 20
# Readers for tables of texts. Other readers unpack archives or open files that rows name.
READERS = frozenset({"arrow", "cache", "csv", "json", "parquet", "text"})
ARCHIVES = frozenset({"zip", "tar", "7z", "rar"})


def _check_column(column: str, columns: Sequence[str], name: str, where: str) -> None:
    if column not in columns:
        remedy = f"set it to one of {', '.join(columns)}"
        raise RecipeError(where, f"{name} has no column {column!r}", remedy)


@dataclass(frozen=True)
class ParquetFile(LocalFile):
    """A Parquet file with texts in the string column ``column``."""

    def iter_items(self) -> Iterator[Document | RecipeError]:
        for number, text in enumerate(self._texts(), start=1):
            if text is None:
                yield self._error(f"row {number:,} has no text", "remove rows without text")
            else:
                yield Document(text)

    def text_columns(self) -> list[str]:
        with self._opened() as (kinds, _):
            return [name for name, kind in kinds.items() if _is_text(kind)]

    def _texts(self) -> Iterator[str | None]:
        with self._opened() as (kinds, batches):
            where = f"{self.where.removesuffix('.files')}.column"
            _check_column(self.column, [*kinds], self.name, where)
            if not _is_text(kind := kinds[self.column]):
                problem = f"column {self.column!r} of {self.name} has type {kind}, not string"
                raise RecipeError(where, problem, "set it to a column of strings")
            for batch in batches:
                yield from (value.as_py() for value in batch.column(0))

    @contextmanager
    def _opened(self) -> Iterator[tuple[dict[str, Any], Iterator[Any]]]:
        """Yield all column types and the batches of the text column; explain read errors."""
        import pyarrow  # slow to import

        num_rows = 0

        def count_batches(batches: Iterator[Any]) -> Iterator[Any]:
            nonlocal num_rows
            for batch in batches:
                yield batch
                num_rows += len(batch)

        try:
            with self.path.open("rb") as file:
                schema, batches = self._open(file)
                yield {field.name: field.type for field in schema}, count_batches(batches)
        except RecipeError:
            raise
        except (OSError, ValueError, MemoryError, pyarrow.ArrowException) as error:
            reason = str(error) or "it needs more memory than is available"
            problem = f"is damaged after row {num_rows:,}: {reason}"
            raise self._error(problem, "copy the file again") from error

    def _open(self, file: BinaryIO) -> tuple[Any, Iterator[Any]]:
        import pyarrow.parquet  # see above

        options: Any = {"page_checksum_verification": True}
        table = pyarrow.parquet.ParquetFile(file, **options)
        schema = table.schema_arrow
        if any(field.name == self.column and _is_text(field.type) for field in schema):
            # Keep a dictionary-encoded column: its values may be large and repeat in many rows.
            options["read_dictionary"] = [self.column]
            table = pyarrow.parquet.ParquetFile(file, **options)
        return schema, table.iter_batches(batch_size=ROWS, columns=[self.column])


@dataclass(frozen=True)
class ArrowFile(ParquetFile):
    """An Arrow file, or a stream of Apache Arrow as ``save_to_disk`` writes it."""

    def _open(self, file: BinaryIO) -> tuple[Any, Iterator[Any]]:
        import pyarrow  # see above

        in_file = file.read(len(MAGIC)) == MAGIC
        file.seek(-len(END_OF_STREAM), SEEK_END)
        if not file.read().endswith(MAGIC if in_file else END_OF_STREAM):
            raise ValueError("its end is missing")  # pyarrow would accept a truncated stream
        file.seek(STREAM_IN_FILE if in_file else 0)
        stream = pyarrow.ipc.open_stream(file)

        def check_batches() -> Iterator[Any]:
            for batch in stream:
                column = batch.select([self.column])
                column.validate(full=True)  # pyarrow trusts the offsets in the file
                yield column

        return stream.schema, check_batches()


def _is_text(kind: Any) -> bool:
    from pyarrow import types  # see above

    kind = kind.value_type if types.is_dictionary(kind) else kind
    tests = (types.is_string, types.is_large_string, types.is_string_view)
    return any(test(kind) for test in tests)


def find_saved(folder: Path, where: str) -> list[Path] | None:
    """List the Arrow files of ``save_to_disk`` (split ``train``); None if it wrote none."""
    if (folder / SAVED_SPLITS).is_file():
        splits = sorted(path.parent.name for path in folder.glob(f"*/{SAVED}"))
        if TRAIN not in splits:
            problem = f"{folder} has no split {TRAIN!r}, but {', '.join(splits) or 'none'}"
            raise RecipeError(where, problem, "set it to the folder of one split")
        folder /= TRAIN
    if not (folder / SAVED).is_file():
        return None
    listed = read_mapping(folder / SAVED, remedy="save the dataset again").get("_data_files")
    names = [file.get("filename") for file in listed or [] if isinstance(file, dict)]
    shards = {path.name: path for path in folder.glob("*.arrow") if not path.is_symlink()}
    if missing := [name for name in names if name not in shards]:
        problem = f"{folder} lacks the file {missing[0]!r}, which its {SAVED} lists"
        raise RecipeError(where, problem, "save the dataset again")
    return [shards[str(name)] for name in names]


@dataclass(frozen=True)
class HubInput(Input):
    """One split of a dataset; if streamed, it is downloaded at each reading and not stored.

    Its record hashes the revision, or sizes and times of local files, but not their content.
    """

    name: str
    where: str
    column: str
    dataset: HubDataset
    if_empty: ClassVar[str | None] = "remove the dataset from the recipe"

    def hash_input(self, hashed: HashFile = hash_file) -> FileRecord:
        with self._opened() as builder:
            tree = [builder.hash, builder.config_id, self.dataset.split, self.column]
        digest = hashlib.sha256(json.dumps(tree).encode()).hexdigest()
        return FileRecord(name=f"dataset:{self.name}", sha256=digest, bytes=0)

    def iter_items(self) -> Iterator[Document | RecipeError]:
        for number, text in enumerate(self._texts(), start=1):
            if isinstance(text, str):
                yield Document(text)
            else:
                yield self._error(f"row {number:,} has no text", "set another column")

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
        """Reject a column of values that name files that the library would open."""
        import datasets

        kind = (features or {}).get(self.column)
        if kind is not None and not isinstance(kind, datasets.Value):
            problem = f"has no strings in column {self.column!r}"
            raise self._error(problem, "set another column")

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Open the dataset; name it in all errors, also in those of the library's readers."""
        source, folder = self.dataset, Path(self.dataset.path)
        try:
            if folder.is_dir():
                check_inside(folder, self.where)
                _check_cards(folder)
            elif not HUB_NAME.fullmatch(source.path):
                raise FileNotFoundError("it is neither a folder nor a valid name on the hub")
            import datasets  # slow to import

            datasets.disable_progress_bars()
            builder = datasets.load_dataset_builder(
                source.path, source.name, revision=source.revision
            )
            _check_files(builder, folder)
            yield builder
        except RecipeError:
            raise
        except Exception as error:  # odd values in a README cause errors of any type
            reason = error.__cause__ or error
            first = str(reason).strip().splitlines()[:1] or [type(reason).__name__]
            remedy = "correct path, name, split or revision (datasets with code are refused)"
            if isinstance(error, ConnectionError):
                remedy = "without a network, set path to a folder of its files, or load the "
                remedy += "dataset on a machine with a network and copy its cache (HF_HOME)"
            raise self._error(f"cannot be read: {first[0]}", remedy) from error


def _check_cards(folder: Path) -> None:
    """Raise a ValueError if a folder's description names addresses or files outside."""
    for file in (folder / name for name in CARDS):
        if not file.is_file():
            continue
        text = read_bounded(file, MOST_CARD_BYTES).decode()
        if file.suffix == ".md":
            front = re.match(r"\s*---[\r\n]+(.*?)[\r\n]+---", text, re.DOTALL)
            text = front[1] if front else ""
        tokens = yaml.scan(text, yaml.SafeLoader)
        if any(isinstance(token, yaml.AliasToken) for token in tokens):
            raise ValueError(f"{file.name} has YAML aliases")
        tree = yaml.safe_load(text)
        for place in _texts(tree.get("configs") if isinstance(tree, dict) else None):
            is_outside = place.startswith(("/", "~")) or ".." in Path(place).parts
            if is_outside or "://" in place or "::" in place:
                raise ValueError(f"{file.name} lists {place!r}, which is not in the folder")


def _texts(tree: object) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict | list):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from _texts(item)


def _check_files(builder: Any, folder: Path) -> None:
    """Raise a ValueError unless all files are tables in the folder or on the hub.

    The content of a file is checked, because the library unpacks an archive of any name.
    """
    from datasets.utils.extract import Extractor

    reader = type(builder).__module__.rpartition(".")[2]
    if reader not in READERS:
        raise ValueError(f"it is not a table of texts: the library reads it as {reader}")
    is_here = folder.is_dir()
    inside = f"{folder.resolve()}/" if is_here else "hf://datasets/"
    for files in (builder.config.data_files or {}).values():
        for file in map(str, files):
            packed = is_here and Extractor.infer_extractor_format(file) in ARCHIVES
            if not file.startswith(inside) or "::" in file or packed:
                raise ValueError(f"it lists {file}, which is not a table in the dataset")
