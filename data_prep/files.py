"""The files that a recipe's source names, each opened as its name says; Parquet by its rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from components.errors import RecipeError
from data_prep.formats import KINDS, kind_of
from data_prep.read import LocalFile, Text, expand_pattern

ROWS = 256


@dataclass(frozen=True)
class ParquetFile(LocalFile):
    """A column of strings; ``column`` names it."""

    def items(self) -> Iterator[Text | RecipeError]:
        """Read all rows; for one without a text, say so.

        Raises:
            RecipeError: a file that is damaged or no Parquet, no such column or no strings in
                it.
        """
        for number, text in enumerate(self._texts(), start=1):
            if text is None:
                yield self._error(f"row {number:,} has no text", "leave such rows out")
            else:
                yield Text(text)

    def _texts(self) -> Iterator[str | None]:
        import pyarrow.parquet  # slow to import: only who reads one pays

        done = 0
        try:
            with pyarrow.parquet.ParquetFile(
                self.path, page_checksum_verification=True
            ) as file:
                self._check_column(file.schema_arrow)
                for batch in file.iter_batches(batch_size=ROWS, columns=[self.column]):
                    yield from batch.column(0).to_pylist()
                    done += len(batch)
        except RecipeError:
            raise
        except (OSError, ValueError) as error:  # bytes that are no UTF-8 are a ValueError
            raise self._error(
                f"is damaged behind row {done:,}: {error}", "copy it anew"
            ) from error

    def _check_column(self, schema: Any) -> None:
        import pyarrow  # see above

        where = f"{self.where.removesuffix('.files')}.column"
        if self.column not in schema.names:
            raise RecipeError(
                where,
                f"{self.name} has no column {self.column!r}",
                f"its columns are {', '.join(schema.names)}",
            )
        kind = schema.field(self.column).type
        if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
            raise RecipeError(
                where,
                f"{self.name} holds no strings in {self.column!r}, but {kind}",
                "name another column",
            )


def open_files(patterns: tuple[str, ...], where: str, column: str) -> Iterator[LocalFile]:
    """Expand file patterns relative to the current folder; each file is given once, sorted.

    Raises:
        RecipeError: a pattern without a file, a folder, or a suffix that is not read.
    """
    found = {path: None for pattern in patterns for path in expand_pattern(pattern, where)}
    for path in found:
        if path.is_dir():
            raise RecipeError(
                where, f"{path} is a folder", f"give a pattern, as {path}/*.jsonl"
            )
        kind = kind_of(path.name)
        if kind is None:
            raise RecipeError(
                where,
                f"{path} is none of {', '.join(KINDS)}",
                "convert it, or correct its name",
            )
        make = ParquetFile if kind == ".parquet" else LocalFile
        yield make(path=path, name=str(path), where=where, column=column)
