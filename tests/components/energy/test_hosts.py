"""RAPL's zones: which of them add up to a host, and how far they count."""

from pathlib import Path

import pytest

from components.energy.counters import Meter, NoCounterError
from components.energy.devices import host_counters
from tests.components.energy.sysfs import write_zone


def test_processors_and_memory_count_and_what_is_part_of_them_does_not(tmp_path: Path) -> None:
    write_zone(tmp_path, "intel-rapl:0", "package-0", microjoules=1_000_000)
    write_zone(tmp_path, "intel-rapl:0:0", "core", microjoules=10_000_000)
    write_zone(tmp_path, "intel-rapl:0:1", "dram", microjoules=100_000_000)
    write_zone(tmp_path, "intel-rapl:1", "package-1-die-0", microjoules=2_000_000)
    write_zone(tmp_path, "intel-rapl:2", "psys", microjoules=20_000_000)
    write_zone(tmp_path, "intel-rapl-mmio:0", "package-0", microjoules=40_000_000)
    assert sum(one.read_joules() for one in host_counters(tmp_path)) == 103.0


def test_a_processor_that_begins_again_at_its_own_range_is_counted_on(tmp_path: Path) -> None:
    file = write_zone(
        tmp_path, "intel-rapl:0", "package-0", microjoules=69_999_000, most=7 * 10**7
    )
    meter = Meter(counters=host_counters(tmp_path), units=1, now=0.0)
    file.write_text("500\n")
    assert meter.measure_energy(0.05).joules == pytest.approx(0.0015)
    file.write_text("600\n")  # 70 joules may pass unseen in 0.07 seconds of a kilowatt
    assert meter.measure_energy(0.2).joules == pytest.approx(0.0015)


def test_a_machine_without_rapl_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoCounterError, match=r"no RAPL below .*/class/powercap"):
        host_counters(tmp_path)


@pytest.mark.parametrize("name", ["energy_uj", "max_energy_range_uj"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    write_zone(tmp_path, "intel-rapl:0", "package-0")
    file = write_zone(tmp_path, "intel-rapl:1", "package-1").with_name(name)
    file.unlink()
    file.mkdir()  # root, who may run this, can read any file, but no folder as one
    with pytest.raises(NoCounterError, match=f"intel-rapl:1/{name}: Is a directory"):
        host_counters(tmp_path)
