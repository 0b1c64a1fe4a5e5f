"""Whose counters a rank reads, so that each device and each host is counted once."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from components.config.schema.cluster import DEVICE_MASKS
from components.distributed.devices import count_devices, device_kind
from components.distributed.mesh import sum_over_ranks
from components.energy.counters import EnergyCounter, EnergyReading, Meter, NoCounterError
from components.energy.devices import (
    NvidiaCounter,
    amd_counters,
    card_counters,
    host_counters,
)
from components.fault_tolerance.rank_health import everyones_energy
from components.train.callbacks.run_metrics import RunMetrics
from components.train.module import Pretraining


@dataclass(frozen=True, kw_only=True)
class EnergySource:
    """The ``units`` devices or hosts that a rank answers for, and what counts them, if any."""

    counters: Sequence[EnergyCounter]
    units: int
    text: str


@dataclass(kw_only=True, eq=False)
class EnergyMonitor(Callback):
    """Count energy from the first step of each process on, to the end of its training.

    It comes before whoever writes the figures, so that its last line is before that closes.
    """

    metrics: RunMetrics
    sysfs: Path
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self.sources = dict.fromkeys(("devices", "hosts"), "no step was taken")

    def on_train_start(self, trainer: Trainer, pl_module: Pretraining) -> None:
        rank, cluster = pl_module.local_rank, pl_module.recipe.cluster
        hardware, ranks = cluster.hardware, cluster.devices_per_node
        devices = device_source(
            pl_module.device,
            rank=rank,
            ranks=ranks,
            per_card=1 if isinstance(hardware, str) else hardware.devices_per_card,
            sysfs=self.sysfs,
        )
        hosts = host_source(rank=rank, sysfs=self.sysfs)
        self.sources = {"devices": devices.text, "hosts": hosts.text}
        if devices.units and not devices.counters:
            self.say(f"the energy of the devices is not measured: {devices.text}")
        now = time.monotonic()
        pl_module.rank_figures.meters = [
            Meter(counters=one.counters, units=one.units, now=now) for one in (devices, hosts)
        ]

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        if pl_module.verdict:  # the step was not taken
            return
        if (told := pl_module.rank_figures.told) is not None:
            self._record(trainer, pl_module, told.energy)

    def on_train_end(self, trainer: Trainer, pl_module: Pretraining) -> None:
        own = pl_module.rank_figures.own_energy(pl_module.device)
        self._record(trainer, pl_module, everyones_energy(sum_over_ranks(own)))

    def _record(
        self,
        trainer: Trainer,
        pl_module: Pretraining,
        counted: Sequence[EnergyReading],
    ) -> None:
        self.metrics.energy(pl_module.progress, *counted)
        total = self.metrics.energy_used["devices"]
        if total.counted_seconds:
            for logger in trainer.loggers:
                logger.log_metrics({"device_joules": total.joules}, pl_module.progress.step)


def device_source(
    device: torch.device, *, rank: int, ranks: int, per_card: int, sysfs: Path
) -> EnergySource:
    """Choose what counts the device of a node's rank ``rank``, of ``ranks``.

    An NVIDIA GPU is its rank's. Intel's and AMD's cards may be two devices, each a rank's, with
    one counter: the node's first rank counts all of them.
    """
    if device.type == "cpu":
        return EnergySource(counters=(), units=0, text="a CPU's energy is its host's")
    if device_kind(device.type) == "rocm":
        text = "pm_counters" if (sysfs / "cray/pm_counters").is_dir() else "rocm-smi"
        find = partial(amd_counters, sysfs, devices=ranks, per_card=per_card)
        return _source(0 if rank else ranks, f"{text} of the cards", find)
    if device.type == "cuda":
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        return _source(1, "NVML", lambda: [NvidiaCounter(uuid=uuid)])
    cards = "hwmon of the cards"
    return _source(0 if rank else ranks, cards, lambda: _whole_cards(ranks, sysfs))


def _whole_cards(ranks: int, sysfs: Path) -> Sequence[EnergyCounter]:
    """Find the counters of Intel's cards, if all that they count is that of our ``ranks``."""
    cards, seen = card_counters(sysfs), count_devices("xpu")
    if os.environ.get(DEVICE_MASKS["xpu"]) or seen != ranks or seen % len(cards):
        together = f"{len(cards)} cards count together what {ranks} ranks and maybe others use"
        raise NoCounterError(together)
    return cards


def host_source(*, rank: int, sysfs: Path) -> EnergySource:
    """Choose what counts the host of a node's rank ``rank``: its first rank answers for it."""
    text = "RAPL of processors and memory"
    return _source(0 if rank else 1, text, lambda: host_counters(sysfs))


def _source(units: int, text: str, find: Callable[[], Sequence[EnergyCounter]]) -> EnergySource:
    try:
        return EnergySource(counters=find() if units else (), units=units, text=text)
    except NoCounterError as error:
        return EnergySource(counters=(), units=units, text=f"no counter: {error}")
