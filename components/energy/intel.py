"""The energy of Intel's GPUs: a file of the kernel's for each card.

``energy1_input`` of the devices that the drivers i915 and xe name after themselves is the whole
card's; what is named ``i915_gt0`` is a tile's (Documentation/ABI/testing/
sysfs-driver-intel-i915-hwmon and -xe-hwmon). The driver adds up a register of 32 bits, and sees
it begin again only if it is read often enough.
"""

import math
from pathlib import Path

from components.energy.counters import MOST_WATTS, FileCounter, NoCounterError

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
    if not cards:
        raise NoCounterError(f"no card of {' or '.join(_DRIVERS)} below {sysfs}/class/drm")
    for card in cards:
        card.read()
    return cards
