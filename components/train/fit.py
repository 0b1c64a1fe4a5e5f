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
from components.train.callbacks.bad_step_guard import BadStepGuard
from components.train.callbacks.checkpoints import Checkpoints
from components.train.callbacks.display import RunProgressBar, StopOnRequest
from components.train.callbacks.energy_monitor import EnergyMonitor
from components.train.callbacks.fault_injection import FaultInjection
from components.train.callbacks.garbage_collection import GarbageCollection
from components.train.callbacks.lifecycle import LifecycleLogger
from components.train.callbacks.profiler import GraphCounter, ProfilerCallback
from components.train.callbacks.run_metrics import RunMetrics
from components.train.callbacks.validation import ValidationByTokens
from components.train.callbacks.watchdog import WatchdogCallback, watch_for_hangs
from components.train.datamodule import PretrainingData
from components.train.held_out import summarize_held_out
from components.train.loggers import MetricsFile, make_loggers, recent_speeds
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
    module, data = load_run(folder, recipe)
    display = RunProgressBar(console(stderr=True, quiet=rank > 0))
    stop = StopOnRequest(file=folder.stop, say=display.say, say_at_once=display.say_at_once)
    seconds, stopped = recipe.checkpoint.retry_seconds, stop.is_asked
    patience: dict[str, Any] = {"retry_seconds": seconds, "stopped": stopped}
    file = MetricsFile(file=folder.metrics, writes=rank == 0, **patience)
    metrics = RunMetrics(file=file)
    journal = EventLog(file=folder.journal, writes=rank == 0, **patience)
    checkpoints = Checkpoints(
        folder=folder.checkpoints,
        journal=journal,
        metrics=metrics,
        settings=recipe.checkpoint,
        say=display.say,
        stopped=stopped,
    )
    watchdog = WatchdogCallback(
        settings=recipe.watchdog, watch=hang, folder=folder, journal=journal, say=display.say
    )
    energy = EnergyMonitor(metrics=metrics, sysfs=SYSFS, say=display.say)
    graphs = GraphCounter()
    profiler = ProfilerCallback(
        settings=recipe.profiler, folder=folder, rank=rank, graphs=graphs, say=display.say
    )
    collect = recipe.parallelism.gc_every_steps
    profiles = recipe.profiler.steps and rank in recipe.profiler.ranks
    callbacks = [
        watchdog,
        LifecycleLogger(
            folder=folder, journal=journal, began=began, loaded=lambda: checkpoints.loaded
        ),
        *([profiler] if profiles else []),
        FaultInjection(folder=folder, faults=recipe.guard.inject, rank=rank),
        *(stop, energy, metrics, graphs),
        *(ValidationByTokens(), checkpoints, display),
        BadStepGuard(checkpoints=checkpoints, journal=journal, metrics=metrics),
        *([] if collect == "never" else [GarbageCollection(every_steps=collect)]),
    ]
    with interrupts_pass():
        trainer = make_trainer(recipe=recipe, callbacks=callbacks, loggers=make_loggers(file))
        trainer.fit(module, datamodule=data)
    if rank == 0:
        results = summarize(module, folder, metrics, energy, graphs, began)
        folder.write_json("results.json", results)
    ended = module.progress.step == recipe.derived.steps and not module.stopping
    return "finished" if ended else "stopped"


def load_run(folder: RunFolder, recipe: Recipe) -> tuple[Pretraining, PretrainingData]:
    """Make the module of the run in ``folder``, and the data module of its prepared data."""
    place = Path(folder.read("data.json", DataFolder).folder)
    data = PretrainingData(recipe=recipe, folder=place)
    return Pretraining(recipe=recipe, eod_id=data.manifest.tokenizer.eod_id), data


def summarize(
    module: Pretraining,
    folder: RunFolder,
    metrics: RunMetrics,
    energy: EnergyMonitor,
    graphs: GraphCounter,
    began: float,
) -> dict[str, Any]:
    """Collect the figures of ``results.json``; every rate names its FLOP convention."""
    recipe, derived, progress = module.recipe, module.recipe.derived, module.progress
    batches, evaluations = module.data.batches, metrics.evaluations
    drawn = batches.drawn_before(progress.step)
    shares = batches.shares_after(evaluations[-1].step if evaluations else 0)
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
            sources=energy.sources,
            electricity=recipe.cluster.electricity,
        ),
        "mixture": {name: asdict(one) for name, one in drawn.items()},
        "held_out": summarize_held_out(
            evaluations, shares, folder.read("data.json", DataFolder).unigram
        ),
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
