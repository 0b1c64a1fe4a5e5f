"""Calibration, ``action=plan calibrate=[...]``: the planner's constants beside measured steps.

A run folder is one measured layout. A table (``.csv``) has a line for each: its columns are
keys of the command line, as ``recipe`` or ``parallelism.tensor``, and what was measured.
"""

import csv
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from command.arguments import Arguments, read_point
from command.composition.compose import compose_recipe
from command.outcome import ActionResult, Status, print_result
from command.recipe.lock_file import as_received, check_recipe_place
from command.words import check_no_recipe, check_recipe_words, keys_of
from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.config.schema.cluster import Hardware
from components.data.files import check_regular, write_atomically
from components.errors import RecipeError
from components.planner import software
from components.planner.calibration import CalibrationStep, fit_memory, fit_speed
from components.planner.job import job_from_recipe
from components.run.ownership import check_links
from components.run.records import TimedResults, read_record
from components.terminal import console

SECONDS, BYTES = "step_seconds", "peak_memory_bytes"
MINE = ("action", "calibrate", "output")
TABLE = ".csv"


@dataclass(frozen=True)
class MeasuredStep:
    """A recipe whose step was measured; bytes of the first rank."""

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
    """Read the median step of a run that has ended and whose steps are all alike."""
    file = path / "results.json"
    if not file.is_file():
        remedy = "name run folders that have a results.json, or .csv files"
        raise RecipeError("calibrate", f"{path} is no run that has ended", remedy)
    check_links(path, "calibrate")
    recipe = read_recipe(path / "recipe.json")
    results = read_record(file, TimedResults, finite=False)
    # A run that kept its batch and its layout.
    all_alike = recipe.budget.ramp_up == "none" and not list(path.glob("recipe-*.json"))
    if not all_alike or not results.tokens_per_second:
        problem = f"the steps of {path} are not all alike, or none was timed"
        raise RecipeError("calibrate", problem, "leave it out")
    if results.device == "cpu":
        raise RecipeError("calibrate", f"{path} ran on a CPU", "the planner knows none")
    seconds = recipe.budget.global_batch_tokens / results.tokens_per_second
    return MeasuredStep(recipe, seconds, results.peak_memory_bytes or None)


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
    """Compose a line's keys over the command's own; the line's values stay a file's.

    Raises:
        RecipeError: what is wrong with the line, or it leaves its layout open.
    """
    if None in cells or None in cells.values():
        raise RecipeError(where, "the line has not as many cells as the head", "mend it")
    seconds = _number(where, SECONDS, cells[SECONDS])
    own = {key: text for key, text in cells.items() if key not in {SECONDS, BYTES} and text}
    kept = [word for word in arguments.words if word.partition("=")[0] not in {*own, *MINE}]
    try:
        check_recipe_words(own, "a table")
        row = as_received(read_point([f"{key}={text}" for key, text in own.items()]))
        asked = read_point(kept)
        if row.searches or asked.searches:
            problem = "auto, but a step was measured in one layout"
            raise RecipeError("parallelism", problem, "name its degrees: parallelism.tensor")
        named = check_recipe_place(row.recipe, "recipe") if row.recipe else asked.recipe
        asked = replace(asked, recipe=named, choices=asked.choices | row.choices)
        recipe = compose_recipe(replace(asked, file_values=row.file_values))
    except RecipeError as error:
        raise RecipeError(f"{where}: {error.path}", error.problem, error.remedy) from None
    peak = cells.get(BYTES)
    return MeasuredStep(recipe, seconds, _number(where, BYTES, peak) if peak else None)


def _number(where: str, key: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise RecipeError(f"{where}: {key}", f"{text!r} is no positive number", "mend it")
    return number


def calibrate(arguments: Arguments) -> ActionResult:
    """Fit, judge on what was not fitted to, and keep what helps beside the profile.

    Raises:
        RecipeError: what was measured cannot be read, or is too little.
    """
    if not any(path.suffix == TABLE for path in arguments.calibrate):
        check_no_recipe(keys_of(arguments.words), "run folders have their recipes")
    read = {path: tuple(read_steps(path, arguments)) for path in arguments.calibrate}
    steps = tuple(step for path in read for step in read[path])
    cluster, hardware = _one_machine(steps)
    measured = [
        CalibrationStep(
            job=job_from_recipe(one.recipe), seconds=one.seconds, peak_bytes=one.peak_bytes
        )
        for one in steps
    ]
    shipped = software.read_software(software.OURS)
    speed = fit_speed(measured, hardware, shipped)
    memory = fit_memory(measured, shipped)
    found = software.Calibration(
        cluster=cluster,
        device=hardware.device,
        fitted_on=f"{datetime.now(UTC):%Y-%m-%d}",
        layouts=speed.layouts,
        sources=tuple(_source(path, len(read[path])) for path in read),
        speed=speed.constants,
        memory=memory.constants if memory and memory.helps else {},
        time_error=speed.errors,
        memory_error=memory.errors if memory else None,
    )
    kept = software.calibration_file(cluster) if speed.helps else None
    if kept is not None:
        write_atomically(kept, software.as_text(found))
    tree = found.model_dump(mode="json") | {"file": str(kept) if kept else None}
    print_result(arguments.output, tree, lambda: _print(found, kept))
    return ActionResult(Status.DONE if kept else Status.DOES_NOT_HOLD)


def _one_machine(steps: Sequence[MeasuredStep]) -> tuple[str, Hardware]:
    """Name the cluster that all steps are of, and check that it has figures."""
    names = sorted({one.recipe.cluster.name for one in steps})
    if len(names) != 1:
        problem = f"the steps are of {len(names)} clusters: {', '.join(names) or 'no steps'}"
        raise RecipeError("calibrate", problem, "calibrate one cluster at a time")
    hardware = steps[0].recipe.cluster.hardware
    if isinstance(hardware, str):
        problem = f"the profile of {names[0]} has no hardware to correct"
        raise RecipeError("cluster.hardware", problem, "add cluster=NAME of a machine that has")
    return names[0], hardware


def _source(path: Path, steps: int) -> software.MeasuredFrom:
    """Name the file by its hash, and not by whose folder it was in."""
    file = path if path.is_file() else path / "recipe.json"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return software.MeasuredFrom(name=path.name, sha256=digest, steps=steps)


def _print(found: software.Calibration, kept: Path | None) -> None:
    """Print constants, then errors: on half of the layouts, after fitting to the others."""
    out, ours = console(width=120), software.read_software(software.OURS)
    table = Table("constant", "shipped", "fitted", box=None)
    for section, fitted in (("speed", found.speed), ("memory", found.memory)):
        for name, value in fitted.items():
            shipped = getattr(getattr(ours, section), name)
            table.add_row(name, f"{shipped:.4g}", f"{value:.4g}")
    out.print(table)
    title = f"error on {found.layouts} layouts: median, and nine of ten below"
    table = Table("", "shipped", "fitted", "held out", title=title, box=None)
    memory = "peak memory" if found.memory else "peak memory, left as shipped"
    for name, errors in (("seconds of a step", found.time_error), (memory, found.memory_error)):
        if errors is not None:
            columns = (errors.before, errors.fitted, errors.held_out)
            table.add_row(name, *(f"{one.median:.1%}, {one.p90:.1%}" for one in columns))
    out.print(table)
    if kept:
        out.print(f"kept in {kept}: plans of {found.cluster} use it from now on")
    else:
        out.print("not kept: layouts that were not fitted to are predicted no better")
