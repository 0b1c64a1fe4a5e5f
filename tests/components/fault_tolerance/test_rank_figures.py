"""All ranks learn the figures of each, and what all of their meters counted together."""

from pathlib import Path

import pytest

from tests.components.distributed.ranks import Ranks
from tests.components.fault_tolerance.energy_cases import told


def test_energy_travels_with_the_figures_of_the_ranks(
    four_ranks: Ranks, tmp_path: Path
) -> None:
    answers = four_ranks(told, tmp_path)
    for first, second, third in answers:
        assert first is None
        assert third is None
        assert second.seconds == pytest.approx([0.1, 0.2, 0.3, 0.4])
        assert min(second.memory_bytes) > 2**20
        devices, hosts = second.energy
        assert devices.joules == pytest.approx(2 * (0 + 1 + 2))
        # Three of four devices have counters, and ranks tell within moments of each other.
        assert devices.counted_fraction == pytest.approx(3 / 4, rel=1e-3)
        assert (hosts.joules, hosts.counted_seconds) == (0, 0)
        assert hosts.passed_seconds == pytest.approx(devices.passed_seconds / 4, rel=1e-3)
