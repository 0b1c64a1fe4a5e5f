"""Whose counters a rank reads, so that each device and each host is counted once."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer

from components.distributed.devices import MASKS, count_devices
from components.distributed.mesh import sum_over_ranks
from components.energy.counters import EnergyCounter, Meter, NoCounterError
from components.energy.devices import NvidiaCounter, card_counters, host_counters
from components.fault_tolerance.rank_health import everyones_energy
from components.train.callbacks.hooks import RunCallback
from components.train.callbacks.metrics_logger import Metrics
from components.train.module import Pretraining


@dataclass(frozen=True, kw_only=True)
class EnergySource:
    """The ``units`` devices or hosts that a rank answers for, and what counts them, if any."""

    counters: Sequence[EnergyCounter]
    units: int
    text: str

    @property
    def is_uncounted(self) -> bool:
        """Whether something is there that nothing counts."""
        return self.units > 0 and not self.counters


class Metering(RunCallback):
    """Count energy from the first step of each process on, to the end of its training.

    The ranks' counts are added where they tell each other figures anyway, and once at the end.
    It comes before whoever writes them, so that the last line is written before that closes.
    """

    def __init__(self, *, metrics: Metrics, sysfs: Path, say: Callable[[str], None]) -> None:
        self._metrics = metrics
        self._sysfs = sysfs
        self._say = say
        self.sources = dict.fromkeys(("devices", "hosts"), "no step was taken")

    def on_begin(self, module: Pretraining) -> None:
        rank, ranks = module.local_rank, module.recipe.cluster.devices_per_node
        devices = device_source(module.device, rank=rank, ranks=ranks, sysfs=self._sysfs)
        hosts = host_source(rank=rank, sysfs=self._sysfs)
        self.sources = {"devices": devices.text, "hosts": hosts.text}
        if devices.is_uncounted:
            self._say(f"the energy of the devices is not measured: {devices.text}")
        now = time.monotonic()
        module.rank_figures.meters = [
            Meter(counters=one.counters, units=one.units, now=now) for one in (devices, hosts)
        ]

    def on_step(self, module: Pretraining) -> None:
        told = module.rank_figures.told
        if told is not None:
            devices, hosts = told.energy
            self._metrics.energy(module.progress, devices=devices, hosts=hosts)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Pretraining)
        own = pl_module.rank_figures.own_energy(pl_module.device)
        devices, hosts = everyones_energy(sum_over_ranks(own))
        self._metrics.energy(pl_module.progress, devices=devices, hosts=hosts)
        super().on_train_end(trainer, pl_module)


def device_source(device: torch.device, *, rank: int, ranks: int, sysfs: Path) -> EnergySource:
    """Choose what counts the device of a node's rank ``rank``, of ``ranks``.

    An NVIDIA GPU is its rank's. Intel's cards have two tiles, each a rank's, and one counter:
    the node's first rank counts all of them.
    """
    if device.type == "cpu":
        return EnergySource(counters=(), units=0, text="a CPU's energy is its host's")
    units = 1 if device.type == "cuda" else 0 if rank else ranks
    try:
        if device.type == "cuda":
            uuid = str(torch.cuda.get_device_properties(device).uuid)
            return EnergySource(counters=[NvidiaCounter(uuid=uuid)], units=units, text="NVML")
        cards = whole_cards(ranks, sysfs) if units else ()
        return EnergySource(counters=cards, units=units, text="hwmon of the cards")
    except NoCounterError as error:
        return EnergySource(counters=(), units=units, text=f"no counter: {error}")


def whole_cards(ranks: int, sysfs: Path) -> Sequence[EnergyCounter]:
    """Find the counters of Intel's cards, if all that they count is that of our ``ranks``.

    Raises:
        NoCounterError: there is none, or part of what they count may be others'.
    """
    cards = card_counters(sysfs)
    seen = count_devices("xpu")
    if os.environ.get(MASKS["xpu"]) or seen != ranks or seen % len(cards):
        raise NoCounterError(
            f"{len(cards)} cards count together what {ranks} ranks and maybe others use"
        )
    return cards


def host_source(*, rank: int, sysfs: Path) -> EnergySource:
    """Choose what counts the host of a node's rank ``rank``: its first rank answers for it."""
    units = 0 if rank else 1
    try:
        counters = host_counters(sysfs) if units else ()
        return EnergySource(
            counters=counters, units=units, text="RAPL of processors and memory"
        )
    except NoCounterError as error:
        return EnergySource(counters=(), units=units, text=f"no counter: {error}")
