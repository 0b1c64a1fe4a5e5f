"""The energy of a host's processors and their memory: RAPL, by the kernel's powercap.

Documentation/power/powercap/powercap.rst. Since CVE-2020-8694 most systems let only root read
it.
"""

from pathlib import Path

from components.energy.counters import (
    MOST_WATTS,
    FileCounter,
    NoCounterError,
    read_joules,
)


def host_counters(sysfs: Path) -> list[FileCounter]:
    """Find the counters of processors and of the memory beside them, and read each once.

    Cores are part of their processor, and ``psys`` is all of the platform again: not counted.

    Raises:
        NoCounterError: there is none, or one does not tell.
    """
    zones = [
        name.parent
        for name in sorted(sysfs.glob("class/powercap/intel-rapl:*/name"))
        if name.read_text("ascii").startswith(("package-", "dram"))
    ]
    if not zones:
        raise NoCounterError(f"no RAPL below {sysfs}/class/powercap")
    counters = [_counter(zone) for zone in zones]
    for counter in counters:
        counter.read()
    return counters


def _counter(zone: Path) -> FileCounter:
    range_joules = read_joules(zone / "max_energy_range_uj")
    return FileCounter(
        file=zone / "energy_uj",
        range_joules=range_joules,
        longest_seconds=range_joules / MOST_WATTS,
    )
