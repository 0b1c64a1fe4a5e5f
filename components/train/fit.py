"""Put the parts together on one rank and train; the ranks read the run folder, nothing else."""

import time
from pathlib import Path
from typing import Any

from components.config.schema.recipe import Recipe
from components.data.manifest import Manifest
from components.data.samples import HeldOutWindows
from components.fault_tolerance.hang import HangWatch
from components.run.disk import explained
from components.run.event_log import EventLog
from components.run.folder import RunFolder
from components.run.records import DataFolder
from components.terminal import console
from components.train.batches import StepBatches
from components.train.callbacks.bad_step_guard import Guarding
from components.train.callbacks.checkpoints import Checkpoints, StopOnRequest
from components.train.callbacks.display import Display
from components.train.callbacks.energy_monitor import Metering
from components.train.callbacks.hooks import Rehearsing, Story
from components.train.callbacks.metrics_logger import Curves, HeldOutLoss, Metrics
from components.train.callbacks.profiler import Profiling
from components.train.callbacks.watchdog import Watching, watch_for_hangs
from components.train.module import Pretraining
from components.train.results import GraphCount, summarize
from components.train.trainer import interrupts_pass, make_trainer, rank_here

SYSFS = Path("/sys")  # where Linux keeps its counters


def fit(folder: RunFolder, recipe: Recipe) -> str:
    """Train by the folder's own recipe to its last token: ``finished`` or ``stopped``."""
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
    profiles = recipe.profiler.steps and rank in recipe.profiler.ranks
    callbacks = [
        watching,
        Story(folder=folder, journal=journal, began=began),
        *([profiling] if profiles else []),
        Rehearsing(folder=folder, faults=recipe.guard.inject, rank=rank),
        *(stop, metering, metrics, graphs),
        HeldOutLoss(windows=windows, metrics=metrics),
        *(checkpoints, display),
        Guarding(checkpoints=checkpoints, journal=journal, metrics=metrics),
    ]
    with interrupts_pass():
        make_trainer(recipe=recipe, callbacks=callbacks, most_steps=None).fit(module)
    if rank == 0:
        results = summarize(
            module=module,
            metrics=metrics,
            folder=folder,
            unigram=data.unigram,
            began=began,
            energy_sources=metering.sources,
            compiler=graphs.figures,
        )
        folder.write_json("results.json", results)
    return "stopped" if module.stopping else "finished"


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
