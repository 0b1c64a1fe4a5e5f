"""Read texts from a table column: Parquet and Arrow files, and datasets of ``datasets``.

A dataset is a name on the hub or a folder of data files. Its code never runs: the library
refuses a dataset that needs code. Its README and schemas may name other files or addresses. So
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
CARDS = ("README.md", ".huggingface.yaml")  # in which a folder describes itself
MOST_CARD_BYTES = 1 << 20
# Readers for tables of texts; others unpack archives or open files that rows name.
READERS = frozenset({"arrow", "cache", "csv", "json", "parquet", "text"})
ARCHIVES = frozenset({"zip", "tar", "7z", "rar"})


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

    def text_columns(self) -> list[str]:
        with self._opened() as (kinds, _):
            return [name for name, kind in kinds.items() if _is_text(kind)]

    def _texts(self) -> Iterator[str | None]:
        with self._opened() as (kinds, batches):
            where = f"{self.where.removesuffix('.files')}.column"
            _check_column(self.column, [*kinds], self.name, where)
            if not _is_text(kind := kinds[self.column]):
                problem = f"{self.name} holds no strings in {self.column!r}, but {kind}"
                raise RecipeError(where, problem, "name another column")
            for batch in batches:
                yield from (value.as_py() for value in batch.column(0))

    @contextmanager
    def _opened(self) -> Iterator[tuple[dict[str, Any], Iterator[Any]]]:
        """Yield the types of all columns and the batches of ours; explain read errors."""
        import pyarrow  # slow to import

        done = 0

        def counted(batches: Iterator[Any]) -> Iterator[Any]:
            nonlocal done
            for batch in batches:
                yield batch
                done += len(batch)

        try:
            with self.path.open("rb") as file:
                schema, batches = self._open(file)
                yield {field.name: field.type for field in schema}, counted(batches)
        except RecipeError:
            raise
        except (OSError, ValueError, MemoryError, pyarrow.ArrowException) as error:
            reason = str(error) or "it asks for more memory than there is"
            problem = f"is damaged behind row {done:,}: {reason}"
            raise self._error(problem, "copy it again") from error

    def _open(self, file: BinaryIO) -> tuple[Any, Iterator[Any]]:
        import pyarrow.parquet  # see above

        options: Any = {"page_checksum_verification": True}
        table = pyarrow.parquet.ParquetFile(file, **options)
        schema = table.schema_arrow
        if any(field.name == self.column and _is_text(field.type) for field in schema):
            # A dictionary stays a dictionary: its values may be large and repeat in each row.
            options["read_dictionary"] = [self.column]
            table = pyarrow.parquet.ParquetFile(file, **options)
        return schema, table.iter_batches(batch_size=ROWS, columns=[self.column])


@dataclass(frozen=True)
class ArrowFile(ParquetFile):
    """The same of a stream of Apache Arrow, as ``save_to_disk`` writes it, or of a file."""

    def _open(self, file: BinaryIO) -> tuple[Any, Iterator[Any]]:
        import pyarrow  # see above

        in_file = file.read(len(MAGIC)) == MAGIC
        file.seek(-len(END_OF_STREAM), SEEK_END)
        if not file.read().endswith(MAGIC if in_file else END_OF_STREAM):
            raise ValueError("its end is missing")  # pyarrow would take less for all
        file.seek(STREAM_IN_FILE if in_file else 0)
        stream = pyarrow.ipc.open_stream(file)

        def checked() -> Iterator[Any]:
            for batch in stream:
                column = batch.select([self.column])
                column.validate(full=True)  # pyarrow trusts the offsets in the file
                yield column

        return stream.schema, checked()


def _is_text(kind: Any) -> bool:
    from pyarrow import types  # see above

    kind = kind.value_type if types.is_dictionary(kind) else kind
    tests = (types.is_string, types.is_large_string, types.is_string_view)
    return any(test(kind) for test in tests)


def find_saved(folder: Path, where: str) -> list[Path] | None:
    """List the Arrow files of what ``save_to_disk`` wrote; of several splits, of ``train``.

    Raises:
        RecipeError: there is no such split, or a file that the folder lists is not in it.
    """
    if (folder / SAVED_SPLITS).is_file():
        splits = sorted(path.parent.name for path in folder.glob(f"*/{SAVED}"))
        if TRAIN not in splits:
            problem = f"{folder} has no split {TRAIN!r}, but {', '.join(splits) or 'none'}"
            raise RecipeError(where, problem, "name the folder of a split")
        folder /= TRAIN
    if not (folder / SAVED).is_file():
        return None
    listed = read_mapping(folder / SAVED, remedy="save the dataset again").get("_data_files")
    names = [file.get("filename") for file in listed or [] if isinstance(file, dict)]
    shards = {path.name: path for path in folder.glob("*.arrow") if not path.is_symlink()}
    if missing := [name for name in names if name not in shards]:
        problem = f"{folder} holds no file {missing[0]!r}, which its {SAVED} lists"
        raise RecipeError(where, problem, "save the dataset again")
    return [shards[str(name)] for name in names]


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

        kind = (features or {}).get(self.column)
        if kind is not None and not isinstance(kind, datasets.Value):
            problem = f"has no texts in the column {self.column!r}"
            raise self._error(problem, "name another column")

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Open the dataset; name it in errors, also in those of its readers."""
        source, folder = self.dataset, Path(self.dataset.path)
        try:
            if folder.is_dir():
                check_inside(folder, self.where)
                _check_cards(folder)
            elif not HUB_NAME.fullmatch(source.path):
                raise FileNotFoundError("is neither a folder nor a name on the hub")
            import datasets  # slow to import

            datasets.disable_progress_bars()
            builder = datasets.load_dataset_builder(
                source.path, source.name, revision=source.revision
            )
            _check_files(builder, folder)
            yield builder
        except RecipeError:
            raise
        except Exception as error:  # odd values of a README make the library raise anything
            reason = error.__cause__ or error
            first = str(reason).strip().splitlines()[:1] or [type(reason).__name__]
            remedy = "correct path, name, split or revision; datasets with code are not read"
            if isinstance(error, ConnectionError):
                remedy = "without a network name a folder of its files as path, or load it "
                remedy += "once on a machine with one and carry the cache over (HF_HOME)"
            raise self._error(f"cannot be read: {first[0]}", remedy) from error


def _check_cards(folder: Path) -> None:
    """Raise a ValueError if the description of a folder names addresses or outside files."""
    for file in (folder / name for name in CARDS):
        if not file.is_file():
            continue
        text = read_bounded(file, MOST_CARD_BYTES).decode()
        if file.suffix == ".md":
            front = re.match(r"\s*---[\r\n]+(.*?)[\r\n]+---", text, re.DOTALL)
            text = front[1] if front else ""
        tokens = yaml.scan(text, yaml.SafeLoader)
        if any(isinstance(token, yaml.AliasToken) for token in tokens):
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
    """Raise a ValueError unless all files are tables in the folder or on the hub.

    The library unpacks an archive whatever its name is, so its content decides.
    """
    from datasets.utils.extract import Extractor

    reader = type(builder).__module__.rpartition(".")[2]
    if reader not in READERS:
        raise ValueError(f"holds no tables of texts: the library takes it for {reader}")
    is_here = folder.is_dir()
    inside = f"{folder.resolve()}/" if is_here else "hf://datasets/"
    for files in (builder.config.data_files or {}).values():
        for file in map(str, files):
            packed = is_here and Extractor.infer_extractor_format(file) in ARCHIVES
            if not file.startswith(inside) or "::" in file or packed:
                raise ValueError(f"names {file}, which is no table in it")
