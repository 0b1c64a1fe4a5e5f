"""``action=plan calibrate=[...]``: what measured steps say of the planner's constants."""

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

from command.arguments import Arguments
from command.measured_steps import TABLE, MeasuredStep, read_steps
from command.outcome import Outcome, Status
from command.words import check_no_recipe, keys_of
from components.errors import RecipeError
from components.planner.calibrated import (
    Calibration,
    Judged,
    MeasuredFrom,
    as_text,
    calibration_file,
)
from components.planner.calibration import Measured, fit_memory, fit_speed
from components.planner.job import job_of
from components.planner.software import OURS, read_software
from components.spec.hardware import Hardware
from components.terminal import console, tell


def calibrate(arguments: Arguments) -> Outcome:
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
        Measured(job=job_of(one.recipe), seconds=one.seconds, peak_bytes=one.peak_bytes)
        for one in steps
    ]
    software = read_software(OURS)
    speed = fit_speed(measured, hardware, software)
    memory = fit_memory(measured, software)
    found = Calibration(
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
    kept = calibration_file(cluster) if speed.helps else None
    if kept is not None:
        _write(kept, as_text(found))
    _print(arguments.output, found, kept)
    return Outcome(Status.DONE if kept else Status.DOES_NOT_HOLD)


def _one_machine(steps: Sequence[MeasuredStep]) -> tuple[str, Hardware]:
    """Name the cluster that all steps are of.

    Raises:
        RecipeError: they are of several, or of one without figures.
    """
    names = sorted({one.recipe.cluster.name for one in steps})
    if len(names) != 1:
        problem = f"the steps are of {len(names)} clusters: {', '.join(names) or 'no steps'}"
        raise RecipeError("calibrate", problem, "calibrate one cluster at a time")
    hardware = steps[0].recipe.cluster.hardware
    if isinstance(hardware, str):
        problem = f"the profile of {names[0]} has no hardware to correct"
        raise RecipeError("cluster.hardware", problem, "add cluster=NAME of a machine that has")
    return names[0], hardware


def _source(path: Path, steps: int) -> MeasuredFrom:
    """Name the file by its hash, and not by whose folder it was in."""
    file = path if path.is_file() else path / "recipe.json"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return MeasuredFrom(name=path.name, sha256=digest, steps=steps)


def _write(file: Path, text: str) -> None:
    beside = file.with_suffix(".partial")
    beside.write_text(text, "utf-8")
    beside.replace(file)


def _print(output: str, found: Calibration, kept: Path | None) -> None:
    if output == "json":
        tree = found.model_dump(mode="json") | {"file": str(kept) if kept else None}
        tell(json.dumps(tree))
        return
    out = console(width=120)
    out.print(_constants(found))
    out.print(_errors(found))
    if kept:
        out.print(f"kept in {kept}: plans of {found.cluster} use it from now on")
    else:
        out.print("not kept: layouts that were not fitted to are predicted no better")


def _constants(found: Calibration) -> Table:
    software = read_software(OURS)
    table = Table("constant", "shipped", "fitted", box=None)
    for section, fitted in (("speed", found.speed), ("memory", found.memory)):
        for name, value in fitted.items():
            shipped = getattr(getattr(software, section), name)
            table.add_row(name, f"{shipped:.4g}", f"{value:.4g}")
    return table


def _errors(found: Calibration) -> Table:
    """Say how far off predictions are: of half of the layouts, after fitting to the others."""
    title = f"error on {found.layouts} layouts: median, and nine of ten below"
    table = Table("", "shipped", "fitted", "held out", title=title, box=None)
    judged: dict[str, Judged | None] = {
        "seconds of a step": found.time_error,
        "peak memory" + ("" if found.memory else ", left as shipped"): found.memory_error,
    }
    for name, errors in judged.items():
        if errors is not None:
            columns = (errors.before, errors.fitted, errors.held_out)
            table.add_row(name, *(f"{one.median:.1%}, {one.p90:.1%}" for one in columns))
    return table
