"""Calibrate the planner's constants with measured steps: ``action=plan calibrate=[...]``."""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

from command.arguments import Arguments
from command.outcome import ActionResult, Status, print_result
from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.config.schema.cluster import Hardware
from components.data.files import write_atomically
from components.errors import RecipeError
from components.planner import software
from components.planner.calibration import CalibrationStep, fit_memory, fit_speed
from components.planner.job import job_from_recipe
from components.run.ownership import check_links
from components.run.records import TimedResults, read_record
from components.terminal import create_console


def read_step(path: Path) -> tuple[Recipe, CalibrationStep]:
    """Read the recipe and median step of a run: one layout, one batch size, not on a CPU."""
    file = path / "results.json"
    if not file.is_file():
        remedy = "write calibrate=[FOLDER,...] with finished runs"
        raise RecipeError("calibrate", f"{path} has no results.json", remedy)
    check_links(path, "calibrate")
    recipe = read_recipe(path / "recipe.json")
    results = read_record(file, TimedResults, finite=False)
    # The run kept its batch size and its layout.
    all_alike = recipe.budget.ramp_up == "none" and not list(path.glob("recipe-*.json"))
    if not all_alike or not results.tokens_per_second:
        problem = f"{path} changed its layout or batch size, or has no step times"
        raise RecipeError("calibrate", problem, "remove this run")
    if results.device == "cpu":
        raise RecipeError("calibrate", f"{path} ran on a CPU", "use runs on accelerators")
    seconds = recipe.budget.global_batch_tokens / results.tokens_per_second
    return recipe, CalibrationStep(
        job=job_from_recipe(recipe),
        seconds=seconds,
        peak_bytes=results.peak_memory_bytes or None,
    )


def fit_calibration(arguments: Arguments) -> ActionResult:
    """Fit constants, and save them next to the profile if they improve held-out steps."""
    runs = [read_step(path) for path in arguments.calibrate]
    cluster, hardware = _common_machine([recipe for recipe, _ in runs])
    measured = [step for _, step in runs]
    shipped = software.read_software(software.OURS)
    speed = fit_speed(measured, hardware, shipped)
    memory = fit_memory(measured, shipped)
    calibration = software.Calibration(
        cluster=cluster,
        device=hardware.device,
        fitted_on=f"{datetime.now(UTC):%Y-%m-%d}",
        layouts=speed.layouts,
        sources=tuple(map(_source, arguments.calibrate)),
        speed=speed.constants,
        memory=memory.constants if memory and memory.is_improvement else {},
        time_error=speed.errors,
        memory_error=memory.errors if memory else None,
    )
    file = software.calibration_file(cluster) if speed.is_improvement else None
    if file is not None:
        write_atomically(file, software.as_text(calibration))
    tree = calibration.model_dump(mode="json") | {"file": str(file) if file else None}
    print_result(arguments.output, tree, lambda: _print(calibration, file))
    return ActionResult(Status.DONE if file else Status.DOES_NOT_HOLD)


def _common_machine(recipes: Sequence[Recipe]) -> tuple[str, Hardware]:
    names = sorted({recipe.cluster.name for recipe in recipes})
    if len(names) != 1:
        problem = f"the runs used {len(names)} clusters: {', '.join(names)}"
        raise RecipeError("calibrate", problem, "calibrate one cluster at a time")
    hardware = recipes[0].cluster.hardware
    if isinstance(hardware, str):
        problem = f"the profile {names[0]} has no hardware section"
        raise RecipeError("cluster.hardware", problem, "use runs of a cluster with hardware")
    return names[0], hardware


def _source(run: Path) -> software.MeasuredFrom:
    """Identify the run by its name and its recipe's hash, not by its folder's path."""
    digest = hashlib.sha256((run / "recipe.json").read_bytes()).hexdigest()
    return software.MeasuredFrom(name=run.name, sha256=digest, steps=1)


def _print(calibration: software.Calibration, saved_file: Path | None) -> None:
    """Print constants, then errors. Held-out errors use a fit to the other half."""
    out, ours = create_console(width=120), software.read_software(software.OURS)
    table = Table("constant", "shipped", "fitted", box=None)
    for section, fitted in (("speed", calibration.speed), ("memory", calibration.memory)):
        for name, value in fitted.items():
            shipped = getattr(getattr(ours, section), name)
            table.add_row(name, f"{shipped:.4g}", f"{value:.4g}")
    out.print(table)
    title = f"error on {calibration.layouts} layouts: median, 90th percentile"
    table = Table("", "shipped", "fitted", "held out", title=title, box=None)
    memory = "peak memory" if calibration.memory else "peak memory, not fitted"
    for name, errors in (
        ("seconds per step", calibration.time_error),
        (memory, calibration.memory_error),
    ):
        if errors is not None:
            columns = (errors.before, errors.fitted, errors.held_out)
            table.add_row(
                name, *(f"{column.median:.1%}, {column.p90:.1%}" for column in columns)
            )
    out.print(table)
    if saved_file:
        out.print(f"saved {saved_file}; plans for {calibration.cluster} now use it")
    else:
        out.print("not saved: the fit does not improve the held-out layouts")
