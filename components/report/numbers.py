"""How the report writes numbers: short where they are read, exact where they are compared."""

import math
from collections.abc import Mapping, Sequence

ABSENT = "—"
_COUNT_UNITS = ("", " k", " M", " B", " T")
_RATE_UNITS = ("", "k", "M", "G", "T", "P", "E")


def loss(value: float | None) -> str:
    """Write a loss with three decimals: the fourth is below what a change of seed moves."""
    return ABSENT if value is None else f"{value:.3f}"


def exact(value: object) -> str:
    """Write any JSON value as it was stated: separators are added, no digit is dropped."""
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {exact(item)}" for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(exact(item) for item in value)
    return str(value)


def measured(value: float) -> str:
    """Write a measured number: whole if it counts, else at least four digits."""
    if isinstance(value, int):
        return f"{value:,}"
    if math.isfinite(value) and 1000 <= abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def count(value: float | None) -> str:
    """Write a count with three digits and k, M, B or T: 7,452,725,248 is 7.45 B."""
    return _scaled(value, _COUNT_UNITS)


def rate(value: float | None, unit: str) -> str:
    """Write a rate with three digits and an SI prefix, such as 35.1 TFLOP/s."""
    return ABSENT if value is None else _prefixed(value, unit)


def kwh(value: float) -> str:
    """Write an energy, such as 1.2 kWh."""
    return f"{measured(value)} kWh"


def watts(value: float) -> str:
    """Write a power, such as 300 W."""
    return f"{measured(value)} W"


def _prefixed(value: float, unit: str) -> str:
    number, _, prefix = _scaled(value, tuple(f" {p}" for p in _RATE_UNITS)).partition(" ")
    return f"{number} {prefix}{unit}"


def _scaled(value: float | None, units: Sequence[str]) -> str:
    if value is None:
        return ABSENT
    if not math.isfinite(value):
        return str(value)
    power = 0
    # 999.7 would be written as 1000: it belongs to the next unit.
    while abs(value) >= 999.5 and power < len(units) - 1:
        value, power = value / 1000, power + 1
    if power == 0 and value == int(value):
        return f"{value:.0f}"
    # The rounding to three digits can carry (0.9997 is 1.00), so it comes first.
    rounded = float(f"{value:.3g}")
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{decimals}f}{units[power]}"


def duration(seconds: float | None) -> str:
    """Write a time span in its two largest units."""
    if seconds is None:
        return ABSENT
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if hours < 48:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{hours // 24} d {hours % 24} h"
