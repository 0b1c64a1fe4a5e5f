"""How the report writes numbers: short where they are read, exact where they are compared."""

import math
from collections.abc import Mapping, Sequence

ABSENT = "—"
_COUNT_PREFIXES = ("", "k", "M", "B", "T")
_RATE_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def written(value: float | None, form: str) -> str:
    """Write a number by a format's specification, such as ``.1%``."""
    return ABSENT if value is None else format(value, form)


def loss(value: float | None) -> str:
    """Write a loss with three decimals: the fourth is below what a change of seed moves."""
    return written(value, ".3f")


def exact(value: object) -> str:
    """Write any JSON value as it was stated: separators are added, no digit is dropped."""
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {exact(item)}" for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(exact(item) for item in value)
    return str(value)


def measured(value: float) -> str:
    """Write a measured number: whole if it counts or has four digits before the point."""
    if isinstance(value, int):
        return f"{value:,}"
    if math.isfinite(value) and 1000 <= abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def carbon(kilograms: float) -> str:
    """Write CO2 equivalent in kg, or from a tonne on in t."""
    return f"{kilograms:.3g} kg" if kilograms < 1_000 else f"{measured(kilograms / 1_000)} t"


def count(value: float | None) -> str:
    """Write a count with three digits and k, M, B or T: 7,452,725,248 is 7.45 B."""
    return ABSENT if value is None else " ".join(filter(None, _scaled(value, _COUNT_PREFIXES)))


def rate(value: float | None, unit: str) -> str:
    """Write a rate with three digits and an SI prefix, such as 35.1 TFLOP/s."""
    if value is None:
        return ABSENT
    number, prefix = _scaled(value, _RATE_PREFIXES)
    return f"{number} {prefix}{unit}"


def _scaled(value: float, prefixes: Sequence[str]) -> tuple[str, str]:
    if not math.isfinite(value):
        return str(value), ""
    power = 0
    # 999.7 would be written as 1000: it belongs to the next prefix.
    while abs(value) >= 999.5 and power < len(prefixes) - 1:
        value, power = value / 1000, power + 1
    if power == 0 and value == int(value):
        return f"{value:.0f}", ""
    # The rounding to three digits can carry (0.9997 is 1.00), so it comes first.
    rounded = float(f"{value:.3g}")
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{decimals}f}", prefixes[power]


def brief(seconds: float) -> str:
    """Write a part of a step with three digits, below a second in milliseconds."""
    milliseconds = float(f"{seconds * 1e3:.3g}")  # 999.9 is 1.00 s
    if milliseconds < 1000:
        return f"{milliseconds:g} ms"
    return f"{float(f'{seconds:.3g}'):,g} s"


def duration(seconds: float | None) -> str:
    """Write a time span in its two largest units, from days to seconds."""
    if seconds is None:
        return ABSENT
    if round(seconds, 1) < _MINUTE:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    minutes = round(seconds / _MINUTE)
    if minutes < 2 * _DAY // _MINUTE:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(seconds / _HOUR)
    return f"{hours // 24} d {hours % 24} h"
