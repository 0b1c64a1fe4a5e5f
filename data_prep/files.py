"""The files that a recipe's source names, each as what its name says."""

from collections.abc import Iterator

from components.errors import RecipeError
from data_prep.formats import KINDS, kind_of
from data_prep.parquet import ParquetFile
from data_prep.read import LocalFile, expand_pattern


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
