"""Faults to plant: where, in place of what, and which test of ``make test`` then fails."""

from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One wrong line; ``instead_of`` stands once in ``file``, a path from the root."""

    fault: str
    file: str
    instead_of: str
    plant: str
    test: str

    @property
    def pytest_words(self) -> list[str]:
        return [self.test]

    def planted(self, text: str) -> str:
        """Put the fault into the text of its file."""
        assert text.count(self.instead_of) == 1, f"{self.file}: {self.instead_of!r}"
        return text.replace(self.instead_of, self.plant)


def read_faults() -> list[Fault]:
    """Read ``mutants.yaml``."""
    entries = yaml.safe_load(Path(__file__).with_name("mutants.yaml").read_text("utf-8"))
    return [Fault(**entry) for entry in entries]
