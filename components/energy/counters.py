"""What counts energy: it is read now and then, and tells joules since some moment."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

# A bound for what one counter counts: at this power the kernel reckons how soon a register
# begins again (drivers/gpu/drm/i915/i915_hwmon.c: 32 bits of 2**-14 J in 4.36 minutes).
MOST_WATTS = 1_000.0
MICRO = 1e-6


class NoCounterError(Exception):
    """Why no counter tells anything here, or did not just now."""


class Counter(Protocol):
    """Count joules up to ``range_joules``, then from zero again.

    Of two readings that are more than ``longest_seconds`` apart nobody knows how often it has
    begun again between them. Infinite where it never does.
    """

    @property
    def range_joules(self) -> float: ...

    @property
    def longest_seconds(self) -> float: ...

    def read(self) -> float:
        """Return the joules that are on the counter.

        Raises:
            NoCounterError: it does not tell.
        """


@dataclass(frozen=True, kw_only=True)
class FileCounter:
    """A file of the kernel's that holds microjoules."""

    file: Path
    range_joules: float
    longest_seconds: float

    def read(self) -> float:
        """Return the joules that are on the counter.

        Raises:
            NoCounterError: the file cannot be read, or holds no number.
        """
        return read_joules(self.file)


def read_joules(file: Path) -> float:
    """Read a file that holds microjoules.

    Raises:
        NoCounterError: the file cannot be read, or holds no number.
    """
    try:
        return int(file.read_text("ascii")) * MICRO
    except OSError as error:
        raise NoCounterError(f"{file}: {error.strerror}") from None
    except ValueError:
        raise NoCounterError(f"{file} holds no number") from None
