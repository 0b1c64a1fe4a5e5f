"""AMD's cards, two devices each: what counts a card counts it once."""

from pathlib import Path

import pytest

from components.energy.counters import Meter, NoCounterError
from components.energy.devices import amd_counters
from tests.components.energy.smi import write_smi


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def write_cray(sysfs: Path, joules: list[float]) -> None:
    folder = sysfs / "cray" / "pm_counters"
    folder.mkdir(parents=True, exist_ok=True)
    for number, one in enumerate(joules):
        (folder / f"accel{number}_energy").write_text(f"{one:.0f} J 1414763438433474 us\n")
        (folder / f"accel{number}_power").write_text("300 W 1414763438433474 us\n")
    (folder / "energy").write_text("9999999 J 1414763438433474 us\n")


@pytest.mark.parametrize(
    "second_dies", [(0.0, 0.0), (100.0, 1_000.0)], ids=["tell nothing", "tell the card's again"]
)
def test_a_card_of_two_dies_is_counted_once(
    programs: Path, tmp_path: Path, second_dies: tuple[float, float]
) -> None:
    one, other = second_dies
    write_smi(programs, [100.0, one, 1_000.0, other])
    (counter,) = amd_counters(tmp_path, devices=4, per_card=2)
    assert counter.read_joules() == pytest.approx(1_100.0)
    meter = Meter(counters=[counter], units=4, now=0.0)
    write_smi(programs, [150.0, one and 150.0, 1_030.0, other and 1_030.0])
    reading = meter.measure_energy(10.0)
    assert reading.joules == pytest.approx(80.0)
    assert reading.is_whole
    assert reading.mean_watts == pytest.approx(
        2.0
    )  # of a die: 80 joules by 4 dies and 10 seconds


def test_cards_of_one_device_are_counted_each(programs: Path, tmp_path: Path) -> None:
    write_smi(programs, [5.0, 7.0])
    (counter,) = amd_counters(tmp_path, devices=2, per_card=1)
    assert counter.read_joules() == pytest.approx(12.0)


@pytest.mark.parametrize(
    ("told", "devices", "said"),
    [
        (
            [5.0, 0.0, 7.0, 0.0],
            2,
            "sees 4 devices of 2 cards with counters, the profile has 2 of 1",
        ),
        (
            [5.0, 0.0, 0.0, 0.0],
            4,
            "sees 4 devices of 1 cards with counters, the profile has 4 of 2",
        ),
        ([5.0, 6.0, 7.0, 8.0], 4, "sees 4 devices of 4 cards"),
        ([0.0, 0.0], 2, "sees 2 devices of 0 cards"),
    ],
    ids=["others' cards", "a card that tells nothing", "dies of their own", "nothing"],
)
def test_what_is_not_the_profile_s_cards_is_not_counted(
    programs: Path, tmp_path: Path, told: list[float], devices: int, said: str
) -> None:
    write_smi(programs, told)
    with pytest.raises(NoCounterError, match=said):
        amd_counters(tmp_path, devices=devices, per_card=2)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (None, "rocm-smi is not installed"),
        ("exit 3", "rocm-smi: .*exit status 3"),
        ("echo ROCk module is NOT loaded", "reports no energy"),
        ('echo \'{"card0": {"GPU ID": 1}}\'', "reports no energy"),
        ("echo '{\"card0\": 1}'", "reports no energy"),
    ],
    ids=["absent", "fails", "no tree", "no energy", "another tree"],
)
def test_a_program_that_does_not_tell_is_no_counter(
    programs: Path, tmp_path: Path, program: str | None, said: str
) -> None:
    if program is not None:
        (programs / "rocm-smi").write_text(f"#!/bin/bash\n{program}\n")
        (programs / "rocm-smi").chmod(0o755)
    with pytest.raises(NoCounterError, match=said):
        amd_counters(tmp_path, devices=2, per_card=2)


def test_cray_s_counters_of_cards_come_before_the_program(
    programs: Path, tmp_path: Path
) -> None:
    write_smi(programs, [1.0, 0.0] * 4)
    write_cray(tmp_path, [10.0, 200.0, 3_000.0, 40_000.0])
    counters = amd_counters(tmp_path, devices=8, per_card=2)
    assert [one.read_joules() for one in counters] == [10.0, 200.0, 3_000.0, 40_000.0]
    assert not (programs / "asked").exists()
    with pytest.raises(NoCounterError, match="4 cards count 4 ranks and perhaps other jobs"):
        amd_counters(tmp_path, devices=4, per_card=2)


def test_a_counter_of_cray_s_that_does_not_tell_is_named(
    programs: Path, tmp_path: Path
) -> None:
    write_cray(tmp_path, [10.0, 20.0])
    counters = amd_counters(tmp_path, devices=4, per_card=2)
    file = tmp_path / "cray/pm_counters/accel1_energy"
    file.write_text("\n")
    with pytest.raises(NoCounterError, match="accel1_energy is not a number"):
        counters[1].read_joules()
    file.unlink()
    with pytest.raises(NoCounterError, match="accel1_energy: No such file"):
        counters[1].read_joules()
