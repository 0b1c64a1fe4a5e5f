"""Site card callback: measures the machine in a short run of two launches, and writes its card.

The first launch measures rates before its first step. The second launch loads the checkpoint of
the first and writes ``card.json`` from the records of the run.
"""

import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, Trainer

from components.config.fingerprint import compute_fingerprint, fingerprint_of
from components.config.recipe import Recipe
from components.config.schema.types import KeyGroup
from components.data.files import write_atomically
from components.distributed import devices
from components.profiling.collective_rates import (
    NUMBER_BYTES,
    CollectiveRate,
    measure_collectives,
)
from components.profiling.rates import copy_bandwidth, large_bytes, square_teraflops
from components.run import site_card
from components.run.folder import RunFolder
from components.run.history import read_lines
from components.run.provenance import processor_name
from components.run.site_card import make_figure
from components.train.module import Pretraining

SIZES = (256, 16, 1)  # divisors of the large message, for the collectives by size
WARM_UP_STEPS = 5  # not in the step's median
RATES = "rates.json"  # of the first launch
FigureTrees = list[dict[str, Any]]


class SiteCardCallback(Callback):
    """Callback that measures products, copies and collectives, and writes the site card."""

    keys_group = KeyGroup.RECORD

    def __init__(self, *, folder: RunFolder) -> None:
        self._folder = folder
        self._rates: FigureTrees = []

    def on_train_start(self, trainer: Trainer, pl_module: Pretraining) -> None:
        """Measure on all ranks. The first rank keeps its figures."""
        if pl_module.progress.step > 0:
            return
        recipe, device = pl_module.recipe, pl_module.device
        computed = devices.compute_dtype(recipe.precision.compute, device)
        for dtype in dict.fromkeys((computed, torch.float32)):
            name = str(dtype).removeprefix("torch.")
            rate = square_teraflops(dtype, device)
            self._rates.append(make_figure("product", rate, dtype=name))
        size = large_bytes(device.type)
        self._rates.append(make_figure("copy", copy_bandwidth(device), bytes=size))
        if dist.is_initialized() and dist.get_world_size() > 1:
            per_node, sizes = recipe.cluster.devices_per_node, [size // n for n in SIZES]
            rates = measure_collectives(device, sizes, per_node=per_node)
            self._rates += map(_collective_figure, rates)

    def on_train_end(self, trainer: Trainer, pl_module: Pretraining) -> None:
        """Keep the rates at the end of the first launch; write the card after the second."""
        if not trainer.is_global_zero or pl_module.stopping:
            return
        if self._rates:
            peak = devices.peak_memory_bytes(pl_module.device)
            figures = [*self._rates, make_figure("peak_memory", peak)]
            self._folder.write_json(RATES, {"figures": figures})
        if pl_module.progress.step == pl_module.recipe.derived_numbers.steps:
            write_card(self._folder, pl_module.recipe.whole_run, pl_module.device)


def _collective_figure(rate: CollectiveRate) -> dict[str, Any]:
    details = {"nodes": rate.nodes, "ranks": rate.ranks, "bytes": rate.bytes}
    if rate.bytes == NUMBER_BYTES:
        return make_figure("latency", rate.seconds, **details)
    return make_figure(rate.collective, rate.gigabytes_per_second, **details)


def write_card(folder: RunFolder, recipe: Recipe, device: torch.device) -> None:
    """Write ``card.json`` from the records of a finished run."""
    events = read_lines(folder.events)
    figures = [
        *folder.read_json(RATES)["figures"],
        *_step_figures(folder, recipe, events),
        *_event_figures(events),
    ]
    kind = devices.device_kind(device.type)
    processor, (_, memory) = processor_name(), devices.free_bytes(device)
    name = processor
    if kind != "cpu":
        name = torch.get_device_module(device.type).get_device_name(device)
    tree = {
        "card": 1,
        "notice": site_card.notice_of(kind),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "run": {
            "recipe": recipe.name,
            "cluster": recipe.cluster.name,
            "scale": recipe.scale.name,
            "mathematics": compute_fingerprint(recipe),
            "layout": fingerprint_of(recipe.model_dump(mode="json"), KeyGroup.LAYOUT),
            "commit": folder.read_json("software.json")["code"]["commit"],
            "sizes": site_card.CardSizes.from_recipe(recipe).model_dump(),
        },
        "versions": {
            package: site_card.clean_words(text) for package, text in _versions(folder).items()
        },
        "machine": {
            "kind": kind,
            "device": site_card.clean_words(name),
            "memory_bytes": memory,
            "processor": site_card.clean_words(processor),
            "cores": os.cpu_count() or 1,
        },
        "figures": figures,
    }
    write_atomically(folder.path / site_card.FILE_NAME, site_card.render_card(tree))


def _versions(folder: RunFolder) -> dict[str, str]:
    software = folder.read_json("software.json")
    packages = software["packages"]
    named = {name: packages[name] for name in ("torch", "lightning", "numpy")}
    return {"python": software["python"], **named}


def _step_figures(
    folder: RunFolder, recipe: Recipe, events: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the step time and its rates, from the steps before the restart."""
    restart = next(event["step"] for event in events if event["kind"] == "resume")
    seconds = median(
        line["seconds"]
        for line in read_lines(folder.metrics)
        if line["kind"] == "step" and WARM_UP_STEPS < line["step"] <= restart
    )
    derived = recipe.derived_numbers
    yield make_figure("step", seconds)
    for kind, flops in (
        ("full", derived.flops_per_token.full),
        ("causal", derived.flops_per_token.causal),
    ):
        rate = flops * derived.tokens_per_step / seconds / derived.ranks / 1e12
        yield make_figure(f"rate_{kind}", rate)


def _event_figures(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the seconds of preflight, start, checkpoint and restart, by their first events."""
    first: dict[str, Mapping[str, Any]] = {}
    for event in events:
        first.setdefault(event["kind"], event)
    if "preflight" in first:
        yield make_figure("preflight", first["preflight"]["seconds"])
    yield make_figure("start", first["start"]["seconds"])
    saved, resumed = first["checkpoint"], first["resume"]
    yield make_figure("checkpoint_size", saved["evidence"]["bytes"])
    yield make_figure("checkpoint", saved["evidence"]["seconds"])
    yield make_figure("checkpoint_stall", saved["seconds"])
    yield make_figure("restart", resumed["seconds"])
    yield make_figure("restart_load", resumed["evidence"]["load_seconds"])
