"""Intel's cards among what else the kernel shows of graphics."""

from pathlib import Path

import pytest

from components.energy.counters import NoCounterError
from components.energy.devices import card_counters
from tests.components.energy.sysfs import write_card


def test_each_card_is_counted_once_and_its_tiles_not_again(tmp_path: Path) -> None:
    for number in range(6):
        driver = "xe" if number == 5 else "i915"
        write_card(tmp_path, number, driver=driver, microjoules=number * 1_500_000)
    assert [one.read_joules() for one in card_counters(tmp_path)] == [1.5 * n for n in range(6)]


def test_a_card_must_be_read_before_its_register_begins_again(tmp_path: Path) -> None:
    write_card(tmp_path, 0)
    (card,) = card_counters(tmp_path)
    assert card.longest_seconds == pytest.approx(4.36 * 60, rel=5e-3)  # i915_hwmon.c


def test_cards_of_other_drivers_are_no_cards_of_ours(tmp_path: Path) -> None:
    write_card(tmp_path, 0, driver="amdgpu")
    with pytest.raises(NoCounterError, match=r"no i915 or xe card below .*/class/drm"):
        card_counters(tmp_path)


def test_a_machine_without_graphics_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoCounterError, match="no i915 or xe card"):
        card_counters(tmp_path)


def test_one_card_that_does_not_tell_is_named(tmp_path: Path) -> None:
    write_card(tmp_path, 0)
    write_card(tmp_path, 1, microjoules=None)
    with pytest.raises(NoCounterError, match="hwmon10/energy1_input: No such file"):
        card_counters(tmp_path)
