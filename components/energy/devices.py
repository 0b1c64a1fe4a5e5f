"""Energy counters: NVIDIA (NVML), AMD (Cray, rocm-smi), Intel (kernel) GPUs; hosts (RAPL).

NVIDIA: nvmlDeviceGetTotalEnergyConsumption returns millijoules since the driver was loaded:
https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html. If MIG divides a GPU,
every instance gets the energy of the whole GPU:
https://github.com/NVIDIA/dcgm-exporter/issues/317.

AMD: a card may be two devices with one common counter. Cray EX nodes have a counter per card,
in whole joules, measured upstream of the card: ``/sys/cray/pm_counters/accel0_energy`` contains
``26541 J 1414763438433474 us``. Other nodes use ``rocm-smi``. For an MI250X it lists both dies,
but the second has no counter and reads 0 (`checkIfSecondaryDie` in
github.com/ROCm/rocm_smi_lib).

Intel: ``energy1_input`` of the hwmon devices named ``i915`` and ``xe`` counts the whole card,
``i915_gt0`` one tile (Documentation/ABI/testing/sysfs-driver-intel-i915-hwmon and -xe-hwmon).
The driver accumulates a register of 32 bits, and detects its overflow only if it is read often
enough.

Hosts: RAPL, Documentation/power/powercap/powercap.rst. Since CVE-2020-8694 most systems allow
only root to read it.
"""

import json
import math
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from components.child_process import tool_environment
from components.energy.counters import MOST_WATTS, EnergyCounter, FileCounter, NoCounterError

try:
    import pynvml
except ImportError:  # may be absent from a site's own packages
    pynvml = None


class NvidiaCounter:
    """NVML energy counter of the GPU with this ``uuid``, as CUDA reports it.

    Raises:
        NoCounterError: NVML or its Python binding is absent, or does not count this GPU alone.
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
            raise NoCounterError("MIG divides this GPU, and NVML counts the whole GPU")
        self.read_joules()

    def read_joules(self) -> float:
        try:
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) * 1e-3
        except pynvml.NVMLError as error:
            raise NoCounterError(f"NVML: {error}") from None


def _is_divided(handle: object) -> bool:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    # GPUs without MIG report NotSupported, drivers older than MIG FunctionNotFound.
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return False
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


_ASK = ("rocm-smi", "--showenergycounter", "--json")
_MICROJOULES = "Accumulated Energy (uJ)"
_SECONDS = 60.0  # a start of Python on a busy node


@dataclass(kw_only=True)
class SmiCounter:
    """Total energy of a node's ``cards`` (with ``devices`` in total), read by ``rocm-smi``."""

    cards: int
    devices: int
    range_joules = longest_seconds = math.inf

    def read_joules(self) -> float:
        microjoules = [float(text) for text in _ask_smi()]
        # If both dies of a card report a number, it is the same: the card's.
        counted = {count for count in microjoules if count > 0}
        if (len(microjoules), len(counted)) != (self.devices, self.cards):
            has = f"{len(microjoules)} devices of {len(counted)} cards with counters"
            wants = f"{self.devices} of {self.cards}"
            raise NoCounterError(f"rocm-smi sees {has}, the profile has {wants}")
        return sum(counted) * 1e-6


def _ask_smi() -> list[str]:
    """Return the microjoules of each device that ``rocm-smi`` lists."""
    try:
        done = subprocess.run(
            _ASK,
            env=tool_environment(),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
        tree = json.loads(done.stdout[done.stdout.index("{") :])  # warnings may come first
        return [
            values[_MICROJOULES] for name, values in tree.items() if name.startswith("card")
        ]
    except FileNotFoundError:
        raise NoCounterError("rocm-smi is not installed") from None
    except subprocess.SubprocessError as error:
        raise NoCounterError(f"rocm-smi: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise NoCounterError("rocm-smi reports no energy") from None


def amd_counters(sysfs: Path, *, devices: int, per_card: int) -> Sequence[EnergyCounter]:
    """Return the counters for the cards of a node's ``devices``, each read once.

    Raises:
        NoCounterError: there is no counter, a reading fails, or others share the cards.
    """
    files = sorted((sysfs / "cray/pm_counters").glob("accel[0-9]*_energy"))
    counters: list[EnergyCounter] = [FileCounter(file=file, unit=1.0) for file in files]
    if counters and len(counters) * per_card != devices:
        has = f"{len(counters)} cards count {devices} ranks and perhaps other jobs together"
        raise NoCounterError(f"{has}, {per_card} devices per card")
    return _tried(counters or [SmiCounter(cards=devices // per_card, devices=devices)])


_DRIVERS = ("i915", "xe")
_REGISTER_JOULES = 2.0 ** (32 - 14)  # i915_hwmon.c, with its example unit


def card_counters(sysfs: Path) -> Sequence[EnergyCounter]:
    """Return the counters of all cards, each read once; NoCounterError if none can be read."""
    names = sorted(sysfs.glob("class/drm/card[0-9]*/device/hwmon/hwmon*/name"))
    cards = [
        FileCounter(
            file=name.with_name("energy1_input"), longest_seconds=_REGISTER_JOULES / MOST_WATTS
        )
        for name in names
        if name.read_text("ascii").strip() in _DRIVERS
    ]
    if not cards:
        raise NoCounterError(f"no {' or '.join(_DRIVERS)} card below {sysfs}/class/drm")
    return _tried(cards)


def host_counters(sysfs: Path) -> Sequence[EnergyCounter]:
    """Return the counters of processors and memory, each read once; else NoCounterError.

    Cores are skipped because they are part of their processor, ``psys`` because it contains the
    whole platform.
    """
    names = sorted(sysfs.glob("class/powercap/intel-rapl:*/name"))
    kinds = ("package-", "dram")
    zones = [name.parent for name in names if name.read_text("ascii").startswith(kinds)]
    counters = list[FileCounter]()
    for zone in zones:
        most = FileCounter(file=zone / "max_energy_range_uj").read_joules()
        seconds, file = most / MOST_WATTS, zone / "energy_uj"
        counters.append(FileCounter(file=file, range_joules=most, longest_seconds=seconds))
    if not counters:
        raise NoCounterError(f"no RAPL below {sysfs}/class/powercap")
    return _tried(counters)


def _tried(counters: Sequence[EnergyCounter]) -> Sequence[EnergyCounter]:
    for counter in counters:
        counter.read_joules()
    return counters
