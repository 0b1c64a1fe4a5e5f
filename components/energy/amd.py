"""Energy of AMD's cards, each of which may be two devices that one counter counts.

Cray EX nodes have a counter a card, in whole joules, upstream of the card:
``/sys/cray/pm_counters/accel0_energy`` reads ``26541 J 1414763438433474 us``. Elsewhere
``rocm-smi --showenergycounter`` is asked. Of an MI250X it lists both dies; the second has no
counter and reads 0 (`checkIfSecondaryDie` in github.com/ROCm/rocm_smi_lib).
"""

import json
import math
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from components.energy.counters import EnergyCounter, NoCounterError

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
            _ASK, capture_output=True, text=True, timeout=_SECONDS, check=True
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
