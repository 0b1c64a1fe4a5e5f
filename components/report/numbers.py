"""Number formats of the report: short for reading, exact for comparison."""

import math
from collections.abc import Mapping, Sequence

ABSENT = "—"
_COUNT_PREFIXES = ("", "k", "M", "B", "T")
_RATE_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def format_value(value: float | None, form: str) -> str:
    """Format a number by a format specification, such as ``.1%``."""
    return ABSENT if value is None else format(value, form)


def format_loss(value: float | None) -> str:
    """Format a loss with three decimals. The fourth is below the effect of a seed change."""
    return format_value(value, ".3f")


def format_exact(value: object) -> str:
    """Format any JSON value exactly: separators are added, no digit is dropped."""
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {format_exact(item)}" for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(format_exact(item) for item in value)
    return str(value)


def format_measured(value: float) -> str:
    """Format a measured number, as an integer if it has four digits before the point."""
    if isinstance(value, int):
        return f"{value:,}"
    if math.isfinite(value) and 1000 <= abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def format_significant(value: float, digits: int = 4) -> str:
    """Format with this many digits: 1,110,000, 46.5 or 0.406; exponents only if tiny."""
    number = float(f"{value:.{digits}g}")
    return f"{number:,.0f}" if abs(number) >= 1_000 else f"{number:.{digits}g}"


def format_known(value: float | None, unit: str = "") -> str:
    """Format a figure with four digits, or return "not known"."""
    return "not known" if value is None else f"{format_significant(value)} {unit}".rstrip()


def format_gib(count: float, decimals: int = 1) -> str:
    """Format bytes as a number of GiB."""
    return f"{count / 2**30:,.{decimals}f}"


def replace_underscores(name: str) -> str:
    """Replace the underscores of an identifier, such as a verdict, by spaces."""
    return name.replace("_", " ")


def format_carbon(kilograms: float) -> str:
    """Format CO2 equivalent in kg, from one tonne on in t."""
    return (
        f"{kilograms:.3g} kg"
        if kilograms < 1_000
        else f"{format_measured(kilograms / 1_000)} t"
    )


def format_count(value: float | None) -> str:
    """Format a count with three digits and k, M, B or T: 7,452,725,248 is 7.45 B."""
    return ABSENT if value is None else " ".join(filter(None, _scaled(value, _COUNT_PREFIXES)))


def format_rate(value: float | None, unit: str) -> str:
    """Format a rate with three digits and an SI prefix, such as 35.1 TFLOP/s."""
    if value is None:
        return ABSENT
    number, prefix = _scaled(value, _RATE_PREFIXES)
    return f"{number} {prefix}{unit}"


def _scaled(value: float, prefixes: Sequence[str]) -> tuple[str, str]:
    if not math.isfinite(value):
        return str(value), ""
    power = 0
    # 999.7 would round to 1000, so it gets the next prefix.
    while abs(value) >= 999.5 and power < len(prefixes) - 1:
        value, power = value / 1000, power + 1
    if power == 0 and value == int(value):
        return f"{value:.0f}", ""
    # Rounding to three digits can carry (0.9997 becomes 1.00), so it comes first.
    rounded = float(f"{value:.3g}")
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{decimals}f}", prefixes[power]


def format_step_seconds(seconds: float) -> str:
    """Format a part of a step with three digits, below one second in milliseconds."""
    milliseconds = float(f"{seconds * 1e3:.3g}")  # 999.9 becomes 1.00 s
    if milliseconds < 1000:
        return f"{milliseconds:g} ms"
    return f"{float(f'{seconds:.3g}'):,g} s"


def format_duration(seconds: float | None) -> str:
    """Format a time span in its two largest units, from days to seconds."""
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
