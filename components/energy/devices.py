"""Energy by machine: GPUs of NVIDIA (NVML), AMD (Cray, rocm-smi), Intel (kernel); hosts (RAPL).

NVIDIA: nvmlDeviceGetTotalEnergyConsumption, millijoules since the driver was loaded:
https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html. Every instance of a GPU
that MIG divides is told the energy of all of it, so that none knows its own:
https://github.com/NVIDIA/dcgm-exporter/issues/317.

AMD: a card may be two devices that one counter counts. Cray EX nodes have a counter a card, in
whole joules, upstream of it: ``/sys/cray/pm_counters/accel0_energy`` reads ``26541 J
1414763438433474 us``. Elsewhere ``rocm-smi`` is asked. Of an MI250X it lists both dies; the
second has no counter and reads 0 (`checkIfSecondaryDie` in github.com/ROCm/rocm_smi_lib).

Intel: ``energy1_input`` of the devices that the drivers i915 and xe name after themselves is
the whole card's; what is named ``i915_gt0`` is a tile's (Documentation/ABI/testing/
sysfs-driver-intel-i915-hwmon and -xe-hwmon). The driver adds up a register of 32 bits, and sees
it begin again only if it is read often enough.

Hosts: Documentation/power/powercap/powercap.rst. Since CVE-2020-8694 most systems let only root
read it.
"""

import json
import math
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from components.child_process import tool_environment
from components.energy.counters import (
    MOST_WATTS,
    EnergyCounter,
    FileCounter,
    NoCounterError,
    read_joules,
)

try:
    import pynvml
except ImportError:  # a site's own packages may lack it
    pynvml = None


class NvidiaCounter:
    """Ask NVML for the energy of the GPU that has this ``uuid``, as CUDA tells it.

    Raises:
        NoCounterError: NVML or its binding is absent, or does not count this GPU alone.
    """

    range_joules = longest_seconds = math.inf

    def __init__(self, *, uuid: str) -> None:
        if pynvml is None:
            raise NoCounterError("the package nvidia-ml-py is not installed")
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            divided = _is_divided(self._handle)
        except pynvml.NVMLError as error:
            raise NoCounterError(f"NVML: {error}") from None
        if divided:
            raise NoCounterError("MIG divides this GPU, and NVML counts all of it together")
        self.read()

    def read(self) -> float:
        try:
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) * 1e-3
        except pynvml.NVMLError as error:
            raise NoCounterError(f"NVML: {error}") from None


def _is_divided(handle: object) -> bool:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    # GPUs that cannot be divided say so, and drivers of before there were any.
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return False
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


_ASK = ("rocm-smi", "--showenergycounter", "--json")
_MICROJOULES = "Accumulated Energy (uJ)"
_SECONDS = 60.0  # a start of Python on a busy node


@dataclass(kw_only=True)
class CrayCounter:
    """A file of Cray's that holds joules of one card."""

    file: Path
    range_joules = longest_seconds = math.inf

    def read(self) -> float:
        try:
            return float(self.file.read_text("ascii").split()[0])
        except OSError as error:
            raise NoCounterError(f"{self.file}: {error.strerror}") from None
        except (ValueError, IndexError):
            raise NoCounterError(f"{self.file} holds no number") from None


@dataclass(kw_only=True)
class SmiCounter:
    """What ``rocm-smi`` tells of a node's ``cards`` together, which are so many ``devices``."""

    cards: int
    devices: int
    range_joules = longest_seconds = math.inf

    def read(self) -> float:
        told = [float(one) for one in _ask_smi()]
        # Where both dies tell, they tell the same number: that of their card.
        counted = {one for one in told if one > 0}
        if (len(told), len(counted)) != (self.devices, self.cards):
            has = f"{len(told)} devices of {len(counted)} cards that count"
            wants = f"the profile's {self.devices} of {self.cards}"
            raise NoCounterError(f"rocm-smi sees {has}, not {wants}")
        return sum(counted) * 1e-6


def _ask_smi() -> list[str]:
    """Return microjoules of each device that ``rocm-smi`` lists."""
    try:
        done = subprocess.run(
            _ASK,
            env=tool_environment(),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
        tree = json.loads(done.stdout[done.stdout.index("{") :])  # warnings may come before
        return [one[_MICROJOULES] for name, one in tree.items() if name.startswith("card")]
    except FileNotFoundError:
        raise NoCounterError("there is no rocm-smi") from None
    except subprocess.SubprocessError as error:
        raise NoCounterError(f"rocm-smi: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise NoCounterError("rocm-smi says nothing of energy") from None


def amd_counters(sysfs: Path, *, devices: int, per_card: int) -> Sequence[EnergyCounter]:
    """Find what counts the cards of a node's ``devices``, and read each counter once.

    Raises:
        NoCounterError: there is none, one does not tell, or others share the cards.
    """
    files = sorted((sysfs / "cray/pm_counters").glob("accel[0-9]*_energy"))
    counters: list[EnergyCounter] = [CrayCounter(file=file) for file in files]
    if counters and len(counters) * per_card != devices:
        has = f"{len(counters)} cards count what {devices} ranks and maybe others use"
        raise NoCounterError(f"{has}, {per_card} devices a card")
    found = counters or [SmiCounter(cards=devices // per_card, devices=devices)]
    for counter in found:
        counter.read()
    return found


_DRIVERS = ("i915", "xe")
_REGISTER_JOULES = 2.0 ** (32 - 14)  # i915_hwmon.c, in units that it calls an example


def card_counters(sysfs: Path) -> list[FileCounter]:
    """Find the counters of all cards below ``sysfs``, and read each once.

    Raises:
        NoCounterError: there is none, or one does not tell.
    """
    names = sorted(sysfs.glob("class/drm/card[0-9]*/device/hwmon/hwmon*/name"))
    cards = [
        FileCounter(
            file=name.with_name("energy1_input"),
            range_joules=math.inf,
            longest_seconds=_REGISTER_JOULES / MOST_WATTS,
        )
        for name in names
        if name.read_text("ascii").strip() in _DRIVERS
    ]
    return _tried(cards, f"no card of {' or '.join(_DRIVERS)} below {sysfs}/class/drm")


def host_counters(sysfs: Path) -> list[FileCounter]:
    """Find the counters of processors and of the memory beside them, and read each once.

    Cores are part of their processor, and ``psys`` is all of the platform again: not counted.

    Raises:
        NoCounterError: there is none, or one does not tell.
    """
    names = sorted(sysfs.glob("class/powercap/intel-rapl:*/name"))
    kinds = ("package-", "dram")
    zones = [name.parent for name in names if name.read_text("ascii").startswith(kinds)]
    ranges = {zone / "energy_uj": read_joules(zone / "max_energy_range_uj") for zone in zones}
    counters = [
        FileCounter(file=file, range_joules=joules, longest_seconds=joules / MOST_WATTS)
        for file, joules in ranges.items()
    ]
    return _tried(counters, f"no RAPL below {sysfs}/class/powercap")


def _tried(counters: list[FileCounter], none: str) -> list[FileCounter]:
    if not counters:
        raise NoCounterError(none)
    for counter in counters:
        counter.read()
    return counters
