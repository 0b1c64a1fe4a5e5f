"""Each device and host is counted by one rank; a run's processes add up to its energy."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from components.checkpoint.metadata import RunProgress
from components.config.schema.cluster import Electricity
from components.energy.counters import EnergyReading
from components.train.callbacks.energy_monitor import device_source, host_source
from components.train.callbacks.run_metrics import RunMetrics
from components.train.fit import summarize_energy
from components.train.loggers import MetricsFile
from tests.components.energy.sysfs import write_card, write_zone
from tests.components.train.test_trainer import Plant, plant

__all__ = ["plant"]  # a fixture

XPU = torch.device("xpu", 0)
source_of = partial(device_source, per_card=2)
SOURCES = {"devices": "NVML", "hosts": "no counter: none"}
FRANCE = Electricity(power_usage_effectiveness=1.2, grams_co2e_per_kwh=57.0)


def counted(joules: float, seconds: float, passed: float | None = None) -> EnergyReading:
    return EnergyReading(
        joules=joules,
        counted_seconds=seconds,
        passed_seconds=seconds if passed is None else passed,
    )


@pytest.mark.parametrize(("cards", "tiles"), [(6, 12), (4, 8), (1, 1)])
def test_the_first_rank_counts_the_cards_of_a_node(plant, tmp_path, cards, tiles):
    plant(xpu=tiles)
    for number in range(cards):
        write_card(tmp_path, number, microjoules=10**number * 1_000_000)
    found = [source_of(XPU, rank=r, ranks=tiles, sysfs=tmp_path) for r in range(tiles)]
    assert sum(one.units for one in found) == found[0].units == tiles
    assert sum(one.read_joules() for one in found[0].counters) == int("1" * cards)
    assert not any(one.counters for one in found[1:])


@pytest.mark.parametrize(
    ("cards", "seen", "ranks", "mask"),
    [(2, 4, 2, ""), (2, 2, 2, "0.0,0.1"), (2, 3, 3, ""), (0, 2, 2, "")],
    ids=["some tiles are others'", "tiles are hidden", "tiles of another card", "no counter"],
)
def test_counters_shared_with_other_ranks_are_not_used(
    plant: Plant,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cards: int,
    seen: int,
    ranks: int,
    mask: str,
) -> None:
    plant(xpu=seen)
    monkeypatch.setenv("ZE_AFFINITY_MASK", mask)
    for number in range(cards):
        write_card(tmp_path, number)
    source = source_of(XPU, rank=0, ranks=ranks, sysfs=tmp_path)
    assert (list(source.counters), source.units) == ([], ranks)
    said = f"{cards} cards count {ranks} ranks" if cards else "no i915"
    assert source.text.startswith(f"no counter: {said}")


def test_a_gpu_without_a_driver_has_no_counter(tmp_path, monkeypatch):
    properties = SimpleNamespace(uuid="00000000-0000-0000-0000-000000000000")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    source = source_of(torch.device("cuda", 3), rank=3, ranks=4, sysfs=tmp_path)
    assert (list(source.counters), source.units) == ([], 1)
    assert source.text.startswith("no counter: ")
    assert "\n" not in source.text  # the run says it in a line


def test_the_energy_of_a_cpu_is_counted_by_its_host(tmp_path: Path) -> None:
    cpu = source_of(torch.device("cpu"), rank=0, ranks=2, sysfs=tmp_path)
    assert (cpu.units, len(cpu.counters)) == (0, 0)
    write_zone(tmp_path, "intel-rapl:0", "package-0")
    first, second = (host_source(rank=rank, sysfs=tmp_path) for rank in range(2))
    assert (len(first.counters), first.units) == (1, 1)
    assert (len(second.counters), second.units) == (0, 0)
    there_is_none = host_source(rank=0, sysfs=tmp_path / "other")
    assert (there_is_none.units, there_is_none.text[:11]) == (1, "no counter:")


def test_a_resumed_run_adds_to_its_earlier_energy(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    used = []
    for joules in (50.0, 70.0):
        metrics = RunMetrics(file=MetricsFile(file=file, writes=True, retry_seconds=0.0))
        for part in (0.5, 1.0):
            metrics.record_energy(
                RunProgress(step=1, tokens=10),
                devices=counted(part * joules, part * 4, part * 8),
                hosts=counted(0, 0, part),
            )
        used.append(metrics.energy_used)
    assert used[1]["devices"] == counted(120, 8, 16)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["devices"]["joules"] for line in lines] == [25, 50, 85, 120]
    assert [line["hosts"]["joules"] for line in lines] == [None] * 4
    assert lines[-1]["hosts"]["passed_seconds"] == 2


def test_energy_per_token_requires_counters_of_all_devices() -> None:
    whole = {"devices": counted(3_000, 10), "hosts": counted(0, 0, 5)}
    found = summarize_energy(whole, tokens=1_500, sources=SOURCES, electricity=FRANCE)
    assert found["joules_per_token"] == 2
    assert (found["devices"]["watts"], found["devices"]["counted_fraction"]) == (300, 1)
    assert (found["hosts"]["joules"], found["hosts"]["watts"]) == (None, None)
    assert (found["devices"]["source"], found["hosts"]["source"]) == (
        "NVML",
        "no counter: none",
    )
    part = {"devices": counted(3_000, 10, 20), "hosts": counted(0, 0, 5)}
    found = summarize_energy(part, tokens=1_500, sources=SOURCES, electricity=FRANCE)
    assert (found["joules_per_token"], found["devices"]["counted_fraction"]) == (None, 0.5)
    site = {"power_usage_effectiveness": 1.2, "grams_co2e_per_kwh": 57.0}
    unknown = dict.fromkeys(("site_kwh", "kg_co2e", "site_kg_co2e"))
    assert found["emissions"] == site | unknown


def test_emissions_are_energy_times_factors_of_the_site() -> None:
    whole = {"devices": counted(7.2e6, 10), "hosts": counted(0, 0, 5)}  # 2 kWh
    found = summarize_energy(whole, tokens=1, sources=SOURCES, electricity=FRANCE)["emissions"]
    assert found["site_kwh"] == pytest.approx(2.4)
    assert found["kg_co2e"] == pytest.approx(0.114)
    assert found["site_kg_co2e"] == pytest.approx(0.1368)
