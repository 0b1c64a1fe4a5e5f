"""Counters of energy as the kernel lays them out below ``/sys``: links from the classes."""

from pathlib import Path


def write_card(
    sysfs: Path, number: int, *, driver: str = "i915", microjoules: int | None = 0
) -> None:
    """Lay out a card with its connector and its tiles, each of which counts the same.

    Without ``microjoules`` the kernel gives no such file.
    """
    pci = sysfs / f"devices/pci0000:00/0000:{number:02x}:00.0"
    minor = pci / f"drm/card{number}"
    (minor / f"card{number}-DP-1").mkdir(parents=True)
    (minor / "device").symlink_to(pci)
    (minor / f"card{number}-DP-1/device").symlink_to(minor)
    for place, name in enumerate((driver, f"{driver}_gt0", f"{driver}_gt1")):
        monitor = pci / f"hwmon/hwmon{10 * number + place}"
        monitor.mkdir(parents=True)
        (monitor / "name").write_text(f"{name}\n")
        if microjoules is not None:
            (monitor / "energy1_input").write_text(f"{microjoules}\n")
    drm = sysfs / "class/drm"
    drm.mkdir(parents=True, exist_ok=True)
    (drm / "version").write_text("drm 1.1.0 20060810\n")
    (drm / f"card{number}").symlink_to(minor)
    (drm / f"card{number}-DP-1").symlink_to(minor / f"card{number}-DP-1")


def write_zone(
    sysfs: Path, zone: str, name: str, *, microjoules: int = 0, most: int = 262_143_328_850
) -> Path:
    """Lay out a zone of RAPL, as ``intel-rapl:0:1``; return the file that counts it."""
    head, *numbers = zone.split(":")
    folder = sysfs / "devices/virtual/powercap" / head
    for depth in range(1, len(numbers) + 1):
        folder /= ":".join([head, *numbers[:depth]])
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "max_energy_range_uj").write_text(f"{most}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    powercap = sysfs / "class/powercap"
    powercap.mkdir(parents=True, exist_ok=True)
    (powercap / zone).symlink_to(folder)
    return folder / "energy_uj"
