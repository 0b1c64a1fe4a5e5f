"""The report's table of energy: what was counted, by whom, and nothing else."""

from pathlib import Path

import pytest

from components.report.figure_tables import energy_quantities, published_grid
from components.report.outcome import load_entries
from components.report.tables import grid_by_quantity
from tests.components.report import conftest as runs

WHOLE = runs.energy_line(60, devices=(4_320_000, 14_400, 14_400), hosts=(360_000, 1_800, 3_600))
PART = runs.energy_line(60, devices=(4_320_000, 14_400, 28_800), hosts=(None, 0, 7_200))
SOURCES = {"energy": {"devices": {"source": "NVML"}, "hosts": {"source": "RAPL <of all>"}}}


def columns(*runs: Path) -> list[dict[str, str]]:
    rows = grid_by_quantity(load_entries(runs), energy_quantities).rows
    return [{cells[0]: cells[place] for cells in rows} for place in range(1, len(runs) + 1)]


def test_unknown_energy_is_not_guessed(write_run: runs.WriteRun) -> None:
    results = runs.results_tree(60) | SOURCES
    measured = write_run("a", lines=[*runs.history_lines(60), WHOLE], results=results)
    first, second = columns(measured, write_run("b"))
    tokens = 60 * runs.TOKENS_PER_STEP
    assert first == {
        "energy of the devices": "1.2 kWh",
        "mean power of a device": "300 W",
        "measured share of the devices' time": "100.0%",
        "joules per token, devices": f"{4_320_000 / tokens:.4g} J",
        "devices, measured by": "NVML",
        "energy of the hosts": "0.1 kWh",
        "mean power of a host": "200 W",
        "measured share of the hosts' time": "50.0%",
        "hosts, measured by": "RAPL <of all>",
    }
    unmeasured = dict.fromkeys(("energy of the devices", "energy of the hosts"), "not measured")
    assert second == dict.fromkeys(second, "—") | unmeasured
    (alone,) = columns(measured)
    assert alone["CO2e of the devices' energy"] == "unknown"  # the profile says nothing


def test_partial_energy_gives_no_energy_per_token(write_run):
    (shown,) = columns(write_run(lines=[*runs.history_lines(60), PART], killed=True))
    assert shown["joules per token, devices"] == "—"
    assert shown["measured share of the devices' time"] == "50.0%"
    assert shown["measured share of the hosts' time"] == "0.0%"


def test_emissions_are_energy_times_the_profile_s_figures(write_run: runs.WriteRun) -> None:
    recipe = runs.recipe_tree()
    known = {"power_usage_effectiveness": 1.5, "grams_co2e_per_kwh": 500.0}
    recipe["cluster"]["electricity"] = known
    recipe["published"] = {"kg_co2e": {"value": 24_690, "unit": "kg CO2e", "source": "paper"}}
    whole, half = (
        write_run(name, lines=[*runs.history_lines(60), line], recipe=recipe)
        for name, line in (("whole", WHOLE), ("half", PART))
    )
    shown, counted = columns(whole, half)
    assert shown["energy of the devices with site overhead"] == "1.8 kWh"
    assert shown["CO2e of the devices' energy"] == "0.6 kg"
    assert shown["CO2e with site overhead"] == "0.9 kg"
    assert counted["CO2e of the devices' energy"] == "unknown"
    (row,) = published_grid(load_entries([whole, half])).rows
    assert row == ("kg co2e", "24,690 kg CO2e", "paper", "0.6 kg", "—")


@pytest.mark.parametrize(("seconds", "shown"), [(14_400, "1.2 kWh"), (20_000, "—")])
def test_published_energy_is_next_to_measured_energy(write_run, seconds, shown: str) -> None:
    line = runs.energy_line(60, devices=(4_320_000, 14_400, seconds), hosts=(None, 0, 3_600))
    published = {"energy_kwh": {"value": 433_196, "unit": "kWh", "source": "card"}}
    recipe = runs.recipe_tree() | {"published": published}
    run = write_run(lines=[*runs.history_lines(60), line], recipe=recipe)
    (row,) = published_grid(load_entries([run])).rows
    assert row == ("energy kwh", "433,196 kWh", "card", shown)
