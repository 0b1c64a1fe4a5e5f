"""Measured steps: of run folders, and of tables.

A run folder is one measured layout. A table (``.csv``) has a line for each: its columns are
keys of the command line, as ``recipe`` or ``parallelism.tensor``, and what was measured.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from command.arguments import Arguments, read_point
from command.compose import compose_recipe
from command.received import as_received, check_recipe_place
from command.words import check_recipe_words
from components.data.files import check_regular
from components.errors import RecipeError
from components.run.links import check_links
from components.run.records import Timed, read_record
from components.spec.recipe import Recipe, read_recipe

SECONDS, BYTES = "step_seconds", "peak_memory_bytes"
MINE = ("action", "calibrate", "output")
TABLE = ".csv"


@dataclass(frozen=True)
class MeasuredStep:
    """A recipe whose step was measured, and where that is written; bytes of the first rank."""

    where: str
    recipe: Recipe
    seconds: float
    peak_bytes: float | None


def read_steps(path: Path, arguments: Arguments) -> Iterator[MeasuredStep]:
    """Read a run folder or a table; what a table's lines do not say, the command does.

    Raises:
        RecipeError: it cannot be read, or holds what is no measured step.
    """
    if path.suffix == TABLE:
        yield from _read_table(path, arguments)
    else:
        yield _read_run(path)


def _read_run(path: Path) -> MeasuredStep:
    """Read the median step of a run.

    Raises:
        RecipeError: it is no run folder, has not ended, or its steps are not all alike.
    """
    file = path / "results.json"
    if not file.is_file():
        remedy = "name run folders that have a results.json, or .csv files"
        raise RecipeError("calibrate", f"{path} is no run that has ended", remedy)
    check_links(path, "calibrate")
    recipe = read_recipe(path / "recipe.json")
    results = read_record(file, Timed, finite=False)
    if not _all_alike(path, recipe) or not results.tokens_per_second:
        problem = f"the steps of {path} are not all alike, or none was timed"
        raise RecipeError("calibrate", problem, "leave it out")
    if results.device == "cpu":
        raise RecipeError("calibrate", f"{path} ran on a CPU", "the planner knows none")
    return MeasuredStep(
        where=str(path),
        recipe=recipe,
        seconds=recipe.budget.global_batch_tokens / results.tokens_per_second,
        peak_bytes=results.peak_memory_bytes or None,
    )


def _all_alike(path: Path, recipe: Recipe) -> bool:
    """Tell whether a run kept its batch and its layout."""
    return recipe.budget.ramp_up == "none" and not list(path.glob("recipe-*.json"))


def _read_table(path: Path, arguments: Arguments) -> Iterator[MeasuredStep]:
    check_regular(path, "calibrate")
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            table = csv.DictReader(lines)
            if SECONDS not in (table.fieldnames or ()):
                problem = f"{path} has no column {SECONDS}"
                raise RecipeError("calibrate", problem, "the other columns are recipe keys")
            for cells in table:
                yield _read_line(f"{path}:{table.line_num}", cells, arguments)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecipeError("calibrate", f"cannot read {path}: {error}", "give a CSV") from None


def _read_line(where: str, cells: Mapping[Any, Any], arguments: Arguments) -> MeasuredStep:
    """Compose the recipe that a line's keys say, over the command's own."""
    if None in cells or None in cells.values():
        raise RecipeError(where, "the line has not as many cells as the head", "mend it")
    seconds = _number(where, SECONDS, cells[SECONDS])
    peak = cells.get(BYTES, "")
    own = {key: text for key, text in cells.items() if key not in {SECONDS, BYTES} and text}
    kept = [word for word in arguments.words if word.partition("=")[0] not in {*own, *MINE}]
    try:
        check_recipe_words(own, "a table")
        row = as_received(read_point([f"{key}={text}" for key, text in own.items()]))
        recipe = compose_recipe(_over(read_point(kept), row))
    except RecipeError as error:
        raise RecipeError(f"{where}: {error.path}", error.problem, error.remedy) from None
    peak_bytes = _number(where, BYTES, peak) if peak else None
    return MeasuredStep(where=where, recipe=recipe, seconds=seconds, peak_bytes=peak_bytes)


def _over(asked: Arguments, row: Arguments) -> Arguments:
    """Put a table's row over the command's own words: its values stay a file's."""
    return replace(
        asked,
        recipe=asked.recipe if row.recipe is None else check_recipe_place(row.recipe, "recipe"),
        choices={**asked.choices, **row.choices},
        file_values=row.file_values,
    )


def _number(where: str, key: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise RecipeError(f"{where}: {key}", f"{text!r} is no positive number", "mend it")
    return number
