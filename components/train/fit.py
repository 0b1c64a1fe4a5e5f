"""Put the parts together on one rank, train, and give the results of a run as data."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from components.checkpoint.metadata import newest_checkpoint, tokens_of
from components.config.fingerprint import compute_fingerprint
from components.config.phases import recipe_at
from components.config.recipe import Recipe
from components.config.schema.cluster import Electricity
from components.data.manifest import Manifest
from components.data.samples import HeldOutWindows
from components.distributed.devices import peak_memory_bytes
from components.energy.counters import EnergyReading
from components.energy.emissions import Emissions
from components.fault_tolerance.hang import HangWatch
from components.json_file import strict
from components.run.disk import explained
from components.run.event_log import EventLog, run_time
from components.run.folder import RunFolder
from components.run.history import held_until, read_lines
from components.run.records import DataFolder
from components.terminal import console
from components.train.batches import StepBatches
from components.train.callbacks.checkpoints import Checkpoints
from components.train.callbacks.display import Display, StopOnRequest
from components.train.callbacks.energy_monitor import Metering
from components.train.callbacks.guarding import Guarding
from components.train.callbacks.hooks import GarbageSchedule, Rehearsing, Story
from components.train.callbacks.metrics_logger import (
    Curves,
    HeldOutLoss,
    Metrics,
    recent_speeds,
)
from components.train.callbacks.profiler import GraphCount, Profiling
from components.train.callbacks.watchdog import Watching, watch_for_hangs
from components.train.held_out import summarize_held_out
from components.train.module import Pretraining
from components.train.trainer import interrupts_pass, make_trainer, rank_here

SYSFS = Path("/sys")  # where Linux keeps its counters


def fit(folder: RunFolder, recipe: Recipe) -> str:
    """Train by the folder's own recipe to its phase's last token: ``finished`` or ``stopped``.

    A run with phases has stopped at the end of each, and goes on by its own recipe.
    """
    if recipe.phases:
        saved = newest_checkpoint(folder.checkpoints)
        recipe = recipe_at(recipe, recipe.clock.steps_of(tokens_of(saved)) if saved else 0)
    with explained(folder.path):
        hang = watch_for_hangs(folder, recipe.watchdog, ranks=recipe.cluster.ranks)
        try:
            return _fit(folder, recipe, hang)
        finally:
            hang.stop()


def _fit(folder: RunFolder, recipe: Recipe, hang: HangWatch) -> str:
    began, rank = time.perf_counter(), rank_here()
    module = load_module(folder, recipe)
    data = folder.read("data.json", DataFolder)
    display = Display(console(stderr=True, quiet=rank > 0))
    stop = StopOnRequest(file=folder.stop, say=display.say, say_at_once=display.say_at_once)
    seconds, stopped = recipe.checkpoint.retry_seconds, stop.is_asked
    patience: dict[str, Any] = {"retry_seconds": seconds, "stopped": stopped}
    curves = Curves(folder=folder.path / "tensorboard") if rank == 0 else None
    metrics = Metrics(file=folder.metrics, curves=curves, **patience)
    journal = EventLog(file=folder.journal, writes=rank == 0, **patience)
    windows = HeldOutWindows(
        folder=Path(data.folder),
        manifest=Manifest.read(Path(data.folder)),
        sequence_length=recipe.budget.sequence_length,
        max_windows=recipe.evaluation.max_windows_per_source,
    )
    checkpoints = Checkpoints(
        folder=folder.checkpoints,
        journal=journal,
        metrics=metrics,
        settings=recipe.checkpoint,
        say=display.say,
        stopped=stopped,
    )
    watching = Watching(
        settings=recipe.watchdog, watch=hang, folder=folder, journal=journal, say=display.say
    )
    metering, graphs = Metering(metrics=metrics, sysfs=SYSFS, say=display.say), GraphCount()
    profiling = Profiling(
        settings=recipe.profiler, folder=folder, rank=rank, graphs=graphs, say=display.say
    )
    collect = recipe.parallelism.gc_every_steps
    profiles = recipe.profiler.steps and rank in recipe.profiler.ranks
    callbacks = [
        watching,
        Story(folder=folder, journal=journal, began=began, loaded=lambda: checkpoints.loaded),
        *([profiling] if profiles else []),
        Rehearsing(folder=folder, faults=recipe.guard.inject, rank=rank),
        *(stop, metering, metrics, graphs),
        HeldOutLoss(windows=windows, metrics=metrics),
        *(checkpoints, display),
        Guarding(checkpoints=checkpoints, journal=journal, metrics=metrics),
        *([] if collect == "never" else [GarbageSchedule(every_steps=collect)]),
    ]
    with interrupts_pass():
        make_trainer(recipe=recipe, callbacks=callbacks, most_steps=None).fit(module)
    if rank == 0:
        results = summarize(module, folder, metrics, metering, graphs, data.unigram, began)
        folder.write_json("results.json", results)
    ended = module.progress.step == recipe.derived.steps and not module.stopping
    return "finished" if ended else "stopped"


def load_module(folder: RunFolder, recipe: Recipe) -> Pretraining:
    """Make the module of the run in ``folder``, with the prepared data that it reads."""
    data = Path(folder.read("data.json", DataFolder).folder)
    manifest = Manifest.read(data)
    return Pretraining(
        recipe=recipe,
        batches=lambda rank: StepBatches(
            recipe=recipe, folder=data, manifest=manifest, rank=rank
        ),
        eod_id=manifest.tokenizer.eod_id,
    )


def summarize(
    module: Pretraining,
    folder: RunFolder,
    metrics: Metrics,
    metering: Metering,
    graphs: GraphCount,
    unigram: Mapping[str, float],
    began: float,
) -> dict[str, Any]:
    """Collect the figures of ``results.json``; every rate names its FLOP convention."""
    recipe, derived, progress = module.recipe, module.recipe.derived, module.progress
    drawn, evaluations = module.batches.drawn_before(progress.step), metrics.evaluations
    shares = module.batches.shares_after(evaluations[-1].step if evaluations else 0)
    flops = derived.flops_per_token
    # The median over steps alone: the first one warms up, evaluations are not training. Steps
    # of one phase are alike.
    speeds = recent_speeds(folder.metrics, after_step=recipe.span.first_step)
    speed = float(np.median(speeds)) if speeds else 0.0
    return strict({
        "status": "finished" if progress.step == derived.steps else "stopped",
        "goes_on": not module.stopping and progress.step < derived.steps,
        "recipe": recipe.name,
        "scale": recipe.scale.name,
        "fingerprint": compute_fingerprint(recipe),
        "steps": progress.step,
        "tokens": progress.tokens,
        "loss": module.last.loss if module.last else None,
        "seconds": held_until(
            run_time(folder.path), read_lines(folder.journal)
        ),  # of all processes
        "last_process_seconds": time.perf_counter() - began,
        "tokens_per_second": speed,
        "tokens_per_second_per_device": speed / derived.ranks,
        "step_seconds": derived.tokens_per_step / speed if speed else None,
        "flops_per_second": {"full": speed * flops.full, "causal": speed * flops.causal},
        "device": str(module.device),
        "peak_memory_bytes": peak_memory_bytes(module.device),  # of the first rank
        "compiler": graphs.figures,  # of the first rank
        "energy": summarize_energy(
            metrics.energy_used,
            tokens=progress.tokens,
            sources=metering.sources,
            electricity=recipe.cluster.electricity,
        ),
        "mixture": {name: asdict(one) for name, one in drawn.items()},
        "held_out": summarize_held_out(evaluations, shares, unigram),
    })


def summarize_energy(
    used: Mapping[str, EnergyReading],
    *,
    tokens: int,
    sources: Mapping[str, str],
    electricity: Electricity,
) -> dict[str, Any]:
    """Give what devices and hosts took, in joules and mean watts, and who counted it.

    A token's share and emissions are those of the devices, and known only if all of them were
    always counted.
    """
    devices = used["devices"]
    per_token = devices.joules / tokens if devices.is_whole and tokens else None
    kwh = devices.kwh if devices.is_whole else None
    emissions = Emissions.of(kwh, **electricity.model_dump())
    found = {
        name: {
            **one.as_json(),
            "watts": one.watts,
            "counted_fraction": one.fraction,
            "source": sources[name],  # of the first rank
        }
        for name, one in used.items()
    }
    return {**found, "joules_per_token": per_token, "emissions": emissions.model_dump()}
