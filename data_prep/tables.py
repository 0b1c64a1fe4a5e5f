"""Texts in a column of a table: Parquet and Arrow files, and what ``datasets`` opens.

That is a name on the hub, or a folder of data files; never with code out of the dataset: the
library itself refuses a folder that needs it. What ``Dataset.save_to_disk`` wrote is read as
Arrow files.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from components.config.schema.data import HubDataset
from components.data.files import FileRecord, HashFile, hash_file
from components.errors import RecipeError
from components.json_file import read_mapping
from data_prep.read import Document, Input, LocalFile

ROWS = 256
SAVED, SAVED_SPLITS = "state.json", "dataset_dict.json"  # written by save_to_disk
TRAIN = "train"
MAGIC, STREAM_IN_FILE = b"ARROW1", 8
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


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
                yield from batch.column(0).to_pylist()

    @contextmanager
    def _opened(self) -> Iterator[tuple[dict[str, Any], Iterator[Any]]]:
        """Give the types of all columns and the batches of ours; explain what fails on them."""
        import pyarrow  # slow to import: only who reads a table pays

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
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            problem = f"is damaged behind row {done:,}: {error}"
            raise self._error(problem, "copy it anew") from error

    def _open(self, file: BinaryIO) -> tuple[Any, Iterator[Any]]:
        import pyarrow.parquet  # see above

        table = pyarrow.parquet.ParquetFile(file, page_checksum_verification=True)
        return table.schema_arrow, table.iter_batches(batch_size=ROWS, columns=[self.column])


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
            if self.dataset.streaming:
                rows = builder.as_streaming_dataset(split=self.dataset.split)
            else:
                builder.download_and_prepare()
                rows = builder.as_dataset(split=self.dataset.split)
            if rows.column_names:
                where = f"{self.where.removesuffix('.dataset')}.column"
                _check_column(self.column, rows.column_names, self.name, where)
            for batch in rows.iter(batch_size=ROWS):
                yield from batch.get(self.column) or [None]

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Open the dataset, and tell what goes wrong with it from there on."""
        import datasets  # slow to import: only who reads one pays
        from datasets.exceptions import DatasetsError

        datasets.disable_progress_bars()
        one = self.dataset
        try:
            yield datasets.load_dataset_builder(one.path, one.name, revision=one.revision)
        except RecipeError:
            raise
        except (OSError, ValueError, RuntimeError, DatasetsError) as error:
            reason = error.__cause__ or error
            first = str(reason).strip().splitlines()[:1] or [type(reason).__name__]
            remedy = "correct path, name, split or revision; datasets with code are not read"
            if isinstance(error, ConnectionError):
                remedy = "without a network name a folder of its files as path, or load it "
                remedy += "once on a machine with one and carry the cache over (HF_HOME)"
            raise self._error(f"cannot be read: {first[0]}", remedy) from error
