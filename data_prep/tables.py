"""Texts in a column of a table: Parquet files, and what the library ``datasets`` opens.

That is a name on the hub, or a folder of data files; never with code out of the dataset: the
library itself refuses a folder that needs it.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from components.config.schema.data import HubDataset
from components.data.files import FileRecord, HashFile, hash_file
from components.errors import RecipeError
from data_prep.read import Document, Input, LocalFile

ROWS = 256


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
