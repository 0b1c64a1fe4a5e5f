"""Energy monitor: assigns counters to ranks, so that each device and host counts once."""

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
from components.energy.devices import NvidiaCounter, amd_counters, card_counters, host_counters
from components.fault_tolerance.rank_health import everyones_energy
from components.train.callbacks.run_metrics import RunMetrics
from components.train.module import Pretraining


@dataclass(frozen=True, kw_only=True)
class EnergySource:
    """The ``units`` devices or hosts that a rank measures, and their counters, if any."""

    counters: Sequence[EnergyCounter]
    units: int
    text: str


@dataclass(kw_only=True, eq=False)
class EnergyMonitor(Callback):
    """Callback that measures energy from the first step of each process to its last.

    It precedes the callbacks that write the figures, since these close after its last record.
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
            Meter(counters=source.counters, units=source.units, now=now)
            for source in (devices, hosts)
        ]

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        if pl_module.verdict:  # the step was rejected
            return
        if (figures := pl_module.rank_figures.last_report) is not None:
            self._record(trainer, pl_module, figures.energy)

    def on_train_end(self, trainer: Trainer, pl_module: Pretraining) -> None:
        own = pl_module.rank_figures.own_energy(pl_module.device)
        self._record(trainer, pl_module, everyones_energy(sum_over_ranks(own)))

    def _record(
        self, trainer: Trainer, pl_module: Pretraining, counted: Sequence[EnergyReading]
    ) -> None:
        self.metrics.record_energy(pl_module.progress, *counted)
        total = self.metrics.energy_used["devices"]
        if total.counted_seconds:
            for logger in trainer.loggers:
                logger.log_metrics({"device_joules": total.joules}, pl_module.progress.step)


def device_source(
    device: torch.device, *, rank: int, ranks: int, per_card: int, sysfs: Path
) -> EnergySource:
    """Choose the energy counters of local rank ``rank`` of ``ranks`` for its device.

    Each rank reads its own NVIDIA GPU. Intel's and AMD's cards may contain two devices (one for
    each of two ranks) with one counter, so the node's first rank reads all cards.
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
    """Return the counters of Intel's cards, if only our ``ranks`` use the cards."""
    cards, num_devices = card_counters(sysfs), count_devices("xpu")
    if os.environ.get(DEVICE_MASKS["xpu"]) or num_devices != ranks or num_devices % len(cards):
        problem = f"{len(cards)} cards count {ranks} ranks and perhaps other jobs together"
        raise NoCounterError(problem)
    return cards


def host_source(*, rank: int, sysfs: Path) -> EnergySource:
    """Choose the energy counters of the host: only the node's first rank reads them."""
    text = "RAPL of processors and memory"
    return _source(0 if rank else 1, text, lambda: host_counters(sysfs))


def _source(units: int, text: str, find: Callable[[], Sequence[EnergyCounter]]) -> EnergySource:
    try:
        return EnergySource(counters=find() if units else (), units=units, text=text)
    except NoCounterError as error:
        return EnergySource(counters=(), units=units, text=f"no counter: {error}")
