"""What the library ``datasets`` opens: a name on the hub, or a folder of data files.

Never with code out of the dataset: the library itself refuses a folder that needs it.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from components.data.files import FileRecord
from components.errors import RecipeError
from data_prep.hashes import HashFile, hash_file
from data_prep.read import Document, Text, only_text

ROWS = 256


class HubName(Protocol):
    """Which dataset, as the recipe's section says it."""

    @property
    def path(self) -> str: ...
    @property
    def name(self) -> str | None: ...
    @property
    def split(self) -> str: ...
    @property
    def revision(self) -> str | None: ...
    @property
    def streaming(self) -> bool: ...


@dataclass(frozen=True)
class HubInput:
    """One split of a dataset; streamed, it is fetched anew at each reading and kept nowhere."""

    dataset: HubName
    column: str
    where: str

    def record(self, hashed: HashFile = hash_file) -> FileRecord:
        """Hash the revision or, of local files, their sizes and times: not their content.

        Raises:
            RecipeError: the dataset cannot be opened.
        """
        builder = self._builder()
        tree = [builder.hash, builder.config_id, self.dataset.split, self.column]
        digest = hashlib.sha256(json.dumps(tree).encode()).hexdigest()
        return FileRecord(name=f"dataset:{self.dataset.path}", sha256=digest, bytes=0)

    def documents(self) -> Iterator[Document]:
        """Read the rows whose text is more than white space, in order.

        Raises:
            RecipeError: the dataset cannot be read, has no such split or column, a row has no
                text, or none has any.
        """
        return only_text(self.items(), self._error("holds no text", "leave it out"))

    def items(self) -> Iterator[Document | RecipeError]:
        """Read all rows; for one without a text, say so.

        Raises:
            RecipeError: the dataset cannot be read, or has no such split or column.
        """
        for number, text in enumerate(self._texts(), start=1):
            if isinstance(text, str):
                yield Text(text)
            else:
                yield self._error(f"row {number:,} has no text", "name another column")

    def _texts(self) -> Iterator[Any]:
        from datasets.exceptions import DatasetsError  # slow to import: only who reads one pays

        try:
            rows = self._open(self._builder())
            if self.column not in (rows.column_names or [self.column]):
                raise RecipeError(
                    self.where.removesuffix(".dataset") + ".column",
                    f"{self.dataset.path} has no column {self.column!r}",
                    f"its columns are {', '.join(rows.column_names)}",
                )
            for batch in rows.iter(batch_size=ROWS):
                yield from batch.get(self.column) or [None]
        except RecipeError:
            raise
        except (OSError, ValueError, RuntimeError, DatasetsError) as error:
            raise self._unreadable(error) from error

    def _open(self, builder: Any) -> Any:
        split = self.dataset.split
        if self.dataset.streaming:
            return builder.as_streaming_dataset(split=split)
        builder.download_and_prepare()
        return builder.as_dataset(split=split)

    def _builder(self) -> Any:
        import datasets  # slow to import: only who reads one pays
        from datasets.exceptions import DatasetsError

        datasets.disable_progress_bars()
        one = self.dataset
        try:
            return datasets.load_dataset_builder(one.path, one.name, revision=one.revision)
        except (OSError, ValueError, RuntimeError, DatasetsError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> RecipeError:
        reason = error.__cause__ or error
        first = str(reason).strip().splitlines()[:1] or [type(reason).__name__]
        if isinstance(error, ConnectionError):
            remedy = (
                "without a network name a folder of its files as path, or load it once on a "
                "machine with one and carry the cache over (HF_HOME)"
            )
        else:
            remedy = "correct path, name, split or revision; datasets with code are not read"
        return self._error(f"cannot be read: {first[0]}", remedy)

    def _error(self, problem: str, remedy: str) -> RecipeError:
        return RecipeError(self.where, f"{self.dataset.path} {problem}", remedy)
