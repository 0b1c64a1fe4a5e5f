"""Put the parts together on one rank, train, and give the results of a run as data."""

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Callback, Trainer

from components.build import build
from components.checkpoint.metadata import newest_checkpoint, tokens_of
from components.command_line import command_line
from components.config.fingerprint import compute_fingerprint
from components.config.phases import recipe_at
from components.config.recipe import Recipe
from components.config.schema.cluster import Electricity
from components.config.schema.types import Node
from components.distributed.devices import peak_memory_bytes
from components.energy.counters import EnergyReading
from components.energy.emissions import Emissions
from components.errors import RecipeError
from components.fault_tolerance.hang import WatchedWork
from components.json_file import strict
from components.run.disk import explained
from components.run.event_log import EventLog, run_time
from components.run.folder import RunFolder, existing_run_folder, open_run_folder
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
from components.train.loggers import MetricsFile, recent_speeds
from components.train.module import Pretraining
from components.train.trainer import interrupts_pass, make_trainer, rank_here

_log = logging.getLogger(__name__)
SYSFS = Path("/sys")  # where Linux keeps its counters


def fit(folder: RunFolder, recipe: Recipe) -> str:
    """Train by the folder's own recipe to its phase's last token: ``finished`` or ``stopped``.

    A run with phases has stopped at the end of each, and goes on by its own recipe.
    """
    with explained(folder.path):
        recipe = phase_recipe(folder, recipe)
        hang = watch_for_hangs(folder, recipe.watchdog, ranks=recipe.cluster.ranks)
        try:
            trainer = make_run_trainer(recipe)
            trainer.expect = hang.expect
            module, data = load_run(folder, recipe)
            trainer.fit(module, datamodule=data, ckpt_path=folder.path)
        finally:
            hang.stop()
    ended = module.progress.step == recipe.derived.steps and not module.stopping
    return "finished" if ended else "stopped"


def build_run(path: Path) -> tuple[Pretraining, PretrainingData, "RunTrainer"]:
    """Make the module, the data module and the trainer of the run in ``path``, in this process.

    Raises:
        RecipeError: the folder is none, or its run has more ranks than one.
    """
    folder, recipe = open_run_folder(path)
    if (ranks := recipe.cluster.ranks) > 1 and "RANK" not in os.environ:
        remedy = f"set cluster.ranks=1; {command_line(f'resume={path}')} starts all ranks"
        raise RecipeError("cluster.ranks", f"{ranks}, but this is one process", remedy)
    recipe = phase_recipe(folder, recipe)
    return *load_run(folder, recipe), make_run_trainer(recipe)


def phase_recipe(folder: RunFolder, recipe: Recipe) -> Recipe:
    """Return the recipe of the phase that the run in ``folder`` has come to."""
    saved = newest_checkpoint(folder.checkpoints) if recipe.phases else None
    step = recipe.clock.steps_of(tokens_of(saved)) if saved else 0
    return recipe_at(recipe, step) if recipe.phases else recipe


class RunTrainer(Trainer):
    """Lightning's trainer for a run folder: all that is written and watched is a callback."""

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
        """Train the run in the folder ``ckpt_path``, from its newest whole checkpoint on.

        Raises:
            RecipeError: it is no run folder; or what a user has to mend.
        """
        folder = RunFolder(Path(ckpt_path or ""))
        if not folder.recipe.is_file():
            existing_run_folder(folder.path, "ckpt_path")
        if self.has_begun:
            raise RecipeError("trainer", "it has trained already", "build_run makes another")
        self.has_begun = True
        parts = RunParts(folder, model.recipe, self)
        self.callbacks = [*parts.callbacks, *self.callbacks]
        self.loggers = parts.loggers
        with interrupts_pass():
            super().fit(model, datamodule=datamodule)
        if parts.rank == 0:
            folder.write_json("results.json", parts.summarize(model))


def make_run_trainer(recipe: Recipe) -> RunTrainer:
    """Make a trainer whose `fit` takes a run folder as ``ckpt_path``.

    Raises:
        RecipeError: the devices of this machine are not those of the recipe.
    """
    return make_trainer(
        recipe=recipe, callbacks=[], kind=RunTrainer, **recipe.trainer.model_dump()
    )


class RunParts:
    """The callbacks and loggers of one process of a run; those of the recipe are among them."""

    def __init__(self, folder: RunFolder, recipe: Recipe, trainer: RunTrainer) -> None:
        self.began, self.rank, self.folder = time.perf_counter(), rank_here(), folder
        rank, display = self.rank, RunProgressBar(console(stderr=True, quiet=self.rank > 0))
        stop = StopOnRequest(file=folder.stop, say=display.say, say_at_once=display.say_at_once)
        seconds, stopped = recipe.checkpoint.retry_seconds, stop.is_asked
        patience: dict[str, Any] = {"retry_seconds": seconds, "stopped": stopped}
        file = MetricsFile(file=folder.metrics, writes=rank == 0, **patience)
        self.metrics = metrics = RunMetrics(file=file)
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
            settings=recipe.watchdog,
            expect=trainer.expect,
            folder=folder,
            journal=journal,
            say=display.say,
        )
        self.energy = EnergyMonitor(metrics=metrics, sysfs=SYSFS, say=display.say)
        self.graphs = graphs = GraphCounter()
        profiler = ProfilerCallback(
            settings=recipe.profiler, folder=folder, rank=rank, graphs=graphs, say=display.say
        )
        collect = recipe.parallelism.gc_every_steps
        profiles = recipe.profiler.steps and rank in recipe.profiler.ranks
        self.callbacks = [
            watchdog,
            LifecycleLogger(
                folder=folder,
                journal=journal,
                began=self.began,
                loaded=lambda: checkpoints.loaded,
            ),
            *([profiler] if profiles else []),
            FaultInjection(folder=folder, faults=recipe.guard.inject, rank=rank),
            *(stop, self.energy, metrics, self.graphs),
            *build_nodes(recipe.callbacks, "callbacks", folder),
            *(ValidationByTokens(), checkpoints, display),
            BadStepGuard(checkpoints=checkpoints, journal=journal, metrics=metrics),
            *([] if collect == "never" else [GarbageCollection(every_steps=collect)]),
        ]
        curves = {} if recipe.trainer.fast_dev_run else recipe.logger
        self.loggers = [file, *build_nodes(curves, "logger", folder)]

    def summarize(self, module: Pretraining) -> dict[str, Any]:
        """Collect the figures of ``results.json``."""
        return summarize(
            module, self.folder, self.metrics, self.energy, self.graphs, self.began
        )


def build_nodes(nodes: Mapping[str, Node], section: str, folder: RunFolder) -> list[Any]:
    """Build the objects of a section; a node with ``_partial_`` gets the run folder.

    A logger that lacks a package is left out.
    """
    objects = []
    for name, node in nodes.items():
        built = build(node, f"{section}.{name}")
        try:
            objects.append(built(folder=folder) if node.get("_partial_") else built)
        except ImportError as error:
            if section != "logger":
                raise
            if rank_here() == 0:
                _log.warning("%s.%s is left out: %s", section, name, error)
    return objects


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
        "goes_on": not (module.stopping or recipe.trainer.fast_dev_run)
        and progress.step < derived.steps,
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
