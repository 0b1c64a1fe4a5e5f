"""Read a site card: verify it, and plan a recipe with its figures: ``calibrate=card.json``."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from command.arguments import Arguments, list_config_groups, read_point
from command.card.request import compose_card
from command.composition.compose import compose_recipe
from command.outcome import print_result
from components.config.fingerprint import compute_fingerprint, fingerprint_of
from components.config.key_groups import KeyGroup
from components.config.recipe import Recipe
from components.config.schema.cluster import Hardware
from components.config.suggestions import suggest_similar
from components.errors import RecipeError
from components.planner import software
from components.planner.job import job_from_recipe
from components.planner.time import plan_time
from components.run.site_card import SiteCard, read_card
from components.terminal import create_console, log_line

# Ninth decile of the error after a step of the same width, tensor and pipeline degrees on two
# nodes has scaled the prediction, by nodes: `benchmarks.planning.planner_accuracy`.
SCALED_ERRORS = {2: 0.12, 8: 0.20}


def find_card(arguments: Arguments) -> Path | None:
    """Return the card among the paths of ``calibrate=``; None for run folders."""
    paths = arguments.calibrate
    cards = [path for path in paths if path.suffix == ".json"]
    if cards and len(paths) > 1:
        problem = f"{cards[0]} is a card, but {len(paths)} paths are given"
        raise RecipeError("calibrate", problem, "write calibrate=card.json, or run folders")
    return cards[0] if cards else None


def verify_card(file: Path, output: str) -> None:
    """Verify a card and print its content."""
    card = read_card(file, "file")
    tree = {"holds": True, **card.model_dump(mode="json", exclude_none=True)}
    print_result(output, tree, lambda: create_console().print("\n".join(_lines(card))))


def _lines(card: SiteCard) -> Iterator[str]:
    run, machine, sizes = card.run, card.machine, card.run.sizes
    yield f"intact: {card.notice}"
    yield f"{run.recipe}, scale={run.scale}, {sizes.nodes} nodes of {run.cluster}, {card.date}"
    yield f"{machine.device}, {machine.processor}, {machine.cores} cores"
    for figure in card.figures:
        parts = [figure.name, figure.dtype or ""]
        parts += [f"{figure.bytes:,} bytes"] if figure.bytes else []
        parts += [f"{figure.ranks} ranks on {figure.nodes} nodes"] if figure.nodes else []
        yield f"{' '.join(filter(None, parts)):<48}{figure.value:>12,.4g} {figure.unit}"


def use_card(arguments: Arguments) -> tuple[Arguments, SiteCard | None]:
    """Add the recipe, cluster and figures of the card, if any, where the user sets none.

    A card of another kind of device than the cluster's changes nothing, and None is returned.
    """
    if (file := find_card(arguments)) is None:
        return arguments, None
    card = read_card(file, "calibrate")
    log_line(f"{file}: {card.notice}")
    if arguments.recipe is None:
        arguments = replace(arguments, recipe=_known("recipe", card.run.recipe))
    if (chosen := arguments.choices.get("cluster", card.run.cluster)) != card.run.cluster:
        problem = f"{file} measured {card.run.cluster}, but the plan is for {chosen}"
        raise RecipeError("calibrate", problem, f"set cluster={card.run.cluster}")
    choices = {"cluster": _known("cluster", card.run.cluster), **arguments.choices}
    arguments = replace(arguments, choices=choices)
    cluster = compose_recipe(arguments).cluster
    if not card.is_of_accelerator or cluster.device not in {card.machine.kind, "auto"}:
        log_line(f"the plan is unchanged: {cluster.name} has {cluster.device} devices")
        return arguments, None
    if isinstance(cluster.hardware, str):
        return arguments, None  # the plan reports the missing profile
    figures = dict(_hardware_values(card, cluster.hardware))
    return replace(arguments, values=figures | arguments.values), card


def _known(group: str, name: str) -> str:
    """Return the name if this machine has such a file."""
    if name not in (names := list_config_groups()[group]):
        problem = f"the card names {name!r}, which is not here"
        raise RecipeError(group, problem, suggest_similar(name, names))
    return name


def _hardware_values(card: SiteCard, profile: Hardware) -> Iterator[tuple[str, Any]]:
    """Yield the keys of the cluster's profile that the card measured, with their values."""
    path = "cluster.hardware"
    for product in card.iter_figures("product"):
        if product.dtype in profile.gemm_teraflops:
            yield f"{path}.gemm_teraflops.{product.dtype}", product.value
    if (copied := card.find_value("copy")) is not None:
        yield f"{path}.memory_gigabytes_per_second", copied
    for name in ("all_reduce", "all_gather"):
        largest = _largest(card, name)
        if 1 in largest:
            yield f"{path}.inside.{name}_gigabytes_per_second", largest[1]
    by_nodes = [[n, rate] for n, rate in sorted(_largest(card, "all_reduce").items()) if n > 1]
    if len(by_nodes) >= len(profile.across.by_nodes):
        yield f"{path}.across.by_nodes", by_nodes
    latency = {figure.nodes: figure.value for figure in card.iter_figures("latency")}
    if 1 in latency:
        yield f"{path}.inside.latency_seconds", latency[1]


def _largest(card: SiteCard, name: str) -> dict[int, float]:
    """Return the bandwidth of the largest message by number of nodes."""
    figures = sorted(card.iter_figures(name), key=lambda figure: figure.bytes or 0)
    return {figure.nodes: figure.value for figure in figures if figure.nodes}


def calibrate_with(card: SiteCard, recipe: Recipe) -> software.Calibration | None:
    """Scale the plan by the card's step, if the step has the plan's width and degrees.

    None if it has not, or if the recipe here is not the recipe that was measured.
    """
    measured, sizes = card.find_value("step"), card.run.sizes
    limits = [error for nodes, error in SCALED_ERRORS.items() if recipe.cluster.nodes <= nodes]
    degrees = recipe.parallelism
    if measured is None or not limits or not isinstance(recipe.cluster.hardware, Hardware):
        return None
    if (sizes.tensor, sizes.pipeline) != (degrees.tensor, degrees.pipeline):
        return None
    short = compose_measured(card) if card.run.recipe == recipe.name else None
    if short is None or short.model["dim"] != recipe.model["dim"]:
        return None
    shipped = software.read_software(software.OURS)
    planned = plan_time(job_from_recipe(short), recipe.cluster.hardware, shipped.speed)
    before, fitted, error = (
        software.Errors(mean=value, median=value, p90=value)
        for value in (abs(planned.total_seconds / measured - 1), 0.0, limits[0])
    )
    return software.Calibration(
        cluster=recipe.cluster.name,
        device=recipe.cluster.hardware.device,
        fitted_on=card.date,
        layouts=1,
        sources=(software.MeasuredFrom(name="card", sha256=card.sha256, steps=1),),
        speed={"step_factor": measured / planned.total_seconds},
        memory={},
        time_error=software.CalibrationErrors(before=before, fitted=fitted, held_out=error),
        memory_error=None,
    )


def compose_measured(card: SiteCard) -> Recipe | None:
    """Compose the card's run again; None if it is not the recipe that was measured."""
    run = card.run
    words = [f"recipe={run.recipe}", f"cluster={run.cluster}", f"scale={run.scale}"]
    try:
        short = compose_card(read_point(words), run.sizes)
    except RecipeError as error:
        log_line(f"the card's step is not used: {error.path}: {error.problem}")
        return None
    layout = fingerprint_of(short.model_dump(mode="json"), KeyGroup.LAYOUT)
    if (compute_fingerprint(short), layout) != (run.mathematics, run.layout):
        log_line("the card's step is not used: its recipe differs from the recipe here")
        return None
    return short
