"""Training of a run on one rank: assemble the parts, fit, and summarize the results."""

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Callback, Trainer

from components.build import build_node
from components.checkpoint.metadata import newest_checkpoint, tokens_of
from components.command_line import command_line
from components.config.fingerprint import compute_fingerprint
from components.config.phases import recipe_at
from components.config.recipe import Recipe
from components.config.schema.cluster import Electricity
from components.config.schema.types import ComponentNode
from components.distributed.devices import peak_memory_bytes
from components.energy.counters import EnergyReading
from components.energy.emissions import Emissions
from components.errors import RecipeError
from components.fault_tolerance.hang import WatchedWork
from components.json_file import replace_nonfinite
from components.run.disk import as_recipe_error
from components.run.event_log import EventLog, run_time
from components.run.folder import RunFolder, existing_run_folder, open_run_folder
from components.run.history import held_until, read_lines
from components.run.records import DataFolder
from components.terminal import create_console
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
from components.train.loggers import MetricsFile, recent_speeds
from components.train.module import Pretraining
from components.train.trainer import interrupts_pass, make_trainer, rank_here

_log = logging.getLogger(__name__)
SYSFS = Path("/sys")  # root of Linux's energy counters


def fit_phase(folder: RunFolder, recipe: Recipe) -> str:
    """Train to the last token of the current phase; return ``finished`` or ``stopped``.

    After each phase but the last, the run is ``stopped`` and continues with the next recipe.
    """
    with as_recipe_error(folder.path):
        recipe = phase_recipe(folder, recipe)
        hang = watch_for_hangs(folder, recipe.watchdog, ranks=recipe.cluster.ranks)
        try:
            trainer = make_run_trainer(recipe)
            trainer.expect = hang.watch_work
            module, data = load_run(folder, recipe)
            trainer.fit(module, datamodule=data, ckpt_path=folder.path)
        finally:
            hang.stop_watching()
    ended = module.progress.step == recipe.derived_numbers.steps and not module.stopping
    return "finished" if ended else "stopped"


def build_run(path: Path) -> tuple[Pretraining, PretrainingData, "RunTrainer"]:
    """Return the module, the data module and the trainer of the run in ``path``.

    Raises RecipeError if ``path`` is not a run folder, or if the run has several ranks, but
    this process is not one of them.
    """
    folder, recipe = open_run_folder(path)
    if (ranks := recipe.cluster.ranks) > 1 and "RANK" not in os.environ:
        remedy = f"set cluster.ranks=1, or start all ranks: {command_line(f'resume={path}')}"
        raise RecipeError("cluster.ranks", f"{ranks}, but this is one process", remedy)
    recipe = phase_recipe(folder, recipe)
    return *load_run(folder, recipe), make_run_trainer(recipe)


def phase_recipe(folder: RunFolder, recipe: Recipe) -> Recipe:
    """Return the recipe of the current phase of the run in ``folder``."""
    saved = newest_checkpoint(folder.checkpoints) if recipe.phases else None
    step = recipe.token_clock.steps_of(tokens_of(saved)) if saved else 0
    return recipe_at(recipe, step) if recipe.phases else recipe


class RunTrainer(Trainer):
    """Lightning's trainer for a run folder. Callbacks do all monitoring and most output."""

    expect: Callable[[WatchedWork], None] = staticmethod(lambda _: None)
    has_begun = False
    callbacks: list[Callback]

    def fit(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        ckpt_path: Any = None,
        weights_only: bool | None = None,
    ) -> None:
        """Train the run in the folder ``ckpt_path`` from its newest whole checkpoint."""
        folder = RunFolder(Path(ckpt_path or ""))
        if not folder.recipe.is_file():
            existing_run_folder(folder.path, "ckpt_path")
        if self.has_begun:
            raise RecipeError("trainer", "has already trained", "make another with build_run")
        self.has_begun = True
        parts = RunParts(folder, model.recipe, self)
        self.callbacks = [*parts.callbacks, *self.callbacks]
        self.loggers = parts.loggers
        with interrupts_pass():
            super().fit(model, datamodule=datamodule)
        if parts.rank == 0:
            folder.write_json("results.json", parts.summarize_run(model))


def make_run_trainer(recipe: Recipe) -> RunTrainer:
    """Return a trainer with a `fit_phase` for run folders; RecipeError for wrong devices."""
    return make_trainer(
        recipe=recipe, callbacks=[], kind=RunTrainer, **recipe.trainer.model_dump()
    )


class RunParts:
    """Callbacks and loggers of one process of a run, including the recipe's."""

    def __init__(self, folder: RunFolder, recipe: Recipe, trainer: RunTrainer) -> None:
        self.began, self.rank, self.folder = time.perf_counter(), rank_here(), folder
        rank, display = (
            self.rank,
            RunProgressBar(create_console(stderr=True, quiet=self.rank > 0)),
        )
        stop = StopOnRequest(
            file=folder.stop, say=display.print_line, say_at_once=display.say_at_once
        )
        seconds, stopped = recipe.checkpoint.retry_seconds, stop.is_requested
        patience: dict[str, Any] = {"retry_seconds": seconds, "stopped": stopped}
        file = MetricsFile(file=folder.metrics, writes=rank == 0, **patience)
        self.metrics = metrics = RunMetrics(file=file)
        event_log = EventLog(file=folder.events, writes=rank == 0, **patience)
        checkpoints = Checkpoints(
            folder=folder.checkpoints,
            event_log=event_log,
            metrics=metrics,
            settings=recipe.checkpoint,
            say=display.print_line,
            stopped=stopped,
        )
        watchdog = WatchdogCallback(
            settings=recipe.watchdog,
            expect=trainer.expect,
            folder=folder,
            event_log=event_log,
            say=display.print_line,
        )
        self.energy = EnergyMonitor(metrics=metrics, sysfs=SYSFS, say=display.print_line)
        self.graphs = graphs = GraphCounter()
        profiler = ProfilerCallback(
            settings=recipe.profiler,
            folder=folder,
            rank=rank,
            graphs=graphs,
            say=display.print_line,
        )
        collect = recipe.parallelism.gc_every_steps
        profiles = recipe.profiler.steps and rank in recipe.profiler.ranks
        self.callbacks = [
            watchdog,
            LifecycleLogger(
                folder=folder,
                event_log=event_log,
                began=self.began,
                loaded=lambda: checkpoints.loaded,
            ),
            *([profiler] if profiles else []),
            FaultInjection(folder=folder, faults=recipe.guard.inject, rank=rank),
            *(stop, self.energy, metrics, self.graphs),
            *build_nodes(recipe.callbacks, "callbacks", folder),
            *(ValidationByTokens(), checkpoints, display),
            BadStepGuard(checkpoints=checkpoints, event_log=event_log, metrics=metrics),
            *([] if collect == "never" else [GarbageCollection(every_steps=collect)]),
        ]
        curves = {} if recipe.trainer.fast_dev_run else recipe.logger
        self.loggers = [file, *build_nodes(curves, "logger", folder)]

    def summarize_run(self, module: Pretraining) -> dict[str, Any]:
        """Return the contents of ``results.json``."""
        return build_summary(
            module, self.folder, self.metrics, self.energy, self.graphs, self.began
        )


def build_nodes(
    nodes: Mapping[str, ComponentNode], section: str, folder: RunFolder
) -> list[Any]:
    """Build the objects of a section. A node with ``_partial_`` gets the run folder.

    A logger is skipped if its package is not installed.
    """
    objects = []
    for name, node in nodes.items():
        built = build_node(node, f"{section}.{name}")
        try:
            objects.append(built(folder=folder) if node.get("_partial_") else built)
        except ImportError as error:
            if section != "logger":
                raise
            if rank_here() == 0:
                _log.warning("%s.%s is skipped: %s", section, name, error)
    return objects


def load_run(folder: RunFolder, recipe: Recipe) -> tuple[Pretraining, PretrainingData]:
    """Return the module of the run in ``folder``, and the data module for its data."""
    data_folder = Path(folder.read_file("data.json", DataFolder).folder)
    data = PretrainingData(recipe=recipe, folder=data_folder)
    return Pretraining(recipe=recipe, eod_id=data.manifest.tokenizer.eod_id), data


def build_summary(
    module: Pretraining,
    folder: RunFolder,
    metrics: RunMetrics,
    energy: EnergyMonitor,
    graphs: GraphCounter,
    began: float,
) -> dict[str, Any]:
    """Return the contents of ``results.json``. Each FLOP rate names its convention."""
    recipe, derived, progress = module.recipe, module.recipe.derived_numbers, module.progress
    batches, evaluations = module.data_module.batches, metrics.evaluations
    drawn = batches.drawn_before(progress.step)
    shares = batches.shares_after(evaluations[-1].step if evaluations else 0)
    flops = derived.flops_per_token
    # The median over steps is robust to warmup and excludes evaluations. Only steps of the
    # current phase are comparable.
    speeds = recent_speeds(folder.metrics, after_step=recipe.phase_span.first_step)
    speed = float(np.median(speeds)) if speeds else 0.0
    return replace_nonfinite({
        "status": "finished" if progress.step == derived.steps else "stopped",
        "goes_on": not (module.stopping or recipe.trainer.fast_dev_run)
        and progress.step < derived.steps,
        "recipe": recipe.name,
        "scale": recipe.scale.name,
        "fingerprint": compute_fingerprint(recipe),
        "steps": progress.step,
        "tokens": progress.tokens,
        "loss": module.last.loss if module.last else None,
        # Of all processes.
        "seconds": held_until(run_time(folder.path), read_lines(folder.events)),
        "last_process_seconds": time.perf_counter() - began,
        "tokens_per_second": speed,
        "tokens_per_second_per_device": speed / derived.ranks,
        "step_seconds": derived.tokens_per_step / speed if speed else None,
        "flops_per_second": {"full": speed * flops.full, "causal": speed * flops.causal},
        "device": str(module.device),
        "peak_memory_bytes": peak_memory_bytes(module.device),  # of the first rank
        "compiler": graphs.graph_counts,  # of the first rank
        "energy": summarize_energy(
            metrics.energy_used,
            tokens=progress.tokens,
            sources=energy.sources,
            electricity=recipe.cluster.electricity,
        ),
        "mixture": {name: asdict(counts) for name, counts in drawn.items()},
        "held_out": summarize_held_out(
            evaluations, shares, folder.read_file("data.json", DataFolder).unigram
        ),
    })


def summarize_energy(
    used: Mapping[str, EnergyReading],
    *,
    tokens: int,
    sources: Mapping[str, str],
    electricity: Electricity,
) -> dict[str, Any]:
    """Return the energy of devices and hosts, in joules and mean watts, and its sources.

    Joules per token and emissions are of devices, and None unless all were always measured.
    """
    devices = used["devices"]
    per_token = devices.joules / tokens if devices.is_whole and tokens else None
    kwh = devices.energy_kwh if devices.is_whole else None
    emissions = Emissions.from_energy(kwh, **electricity.model_dump())
    figures = {
        name: {
            **reading.as_json(),
            "watts": reading.mean_watts,
            "counted_fraction": reading.counted_fraction,
            "source": sources[name],  # of the first rank
        }
        for name, reading in used.items()
    }
    return {**figures, "joules_per_token": per_token, "emissions": emissions.model_dump()}
