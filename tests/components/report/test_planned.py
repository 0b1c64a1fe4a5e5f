"""A run's report shows the plan beside what was measured, where there is a plan."""

from functools import cache
from pathlib import Path
from typing import Any

from components.report.figure_tables import parts_grid, plan_of, planned_grid
from components.report.outcome import load_entries
from tests.components.report import conftest as runs
from tests.recipes.compositions import at_home, plan_tree

STEP, TOKENS, MEMORY = "step, median", "tokens per second", "memory of the first rank"
HOURS, ENERGY = "device-hours of the whole run", "energy of the devices, whole run"
COUNTED, POWER = "energy of the devices, as counted", "mean power per device"


def on_juwels() -> dict[str, Any]:
    return dict(at_home("teuken7b").model_dump(mode="json"))


@cache
def said_by_the_plan() -> dict[str, Any]:
    return plan_tree(at_home("teuken7b"))


def rows(*runs: Path) -> dict[str, list[tuple[str, ...]]]:
    entries = load_entries(runs)
    found: dict[str, list[tuple[str, ...]]] = {}
    for row in planned_grid(entries, [plan_of(one.run.recipe) for one in entries]).rows:
        found.setdefault(row[0], []).append(row[1:])
    return found


def test_planned_figures_equal_the_printed_plan(write_run: runs.WriteRun) -> None:
    results = runs.results_tree(60) | {"device": "cuda:0", "peak_memory_bytes": 33 * 2**30}
    shown = rows(write_run(recipe=on_juwels(), results=results))
    plan = said_by_the_plan()
    time, rate = plan["time"], results["tokens_per_second"]
    step, planned = time["step_seconds"], time["tokens_per_second"]
    between = f"{time['step_seconds_low']:.3g} and {time['step_seconds_high']:.3g} s"
    assert shown[STEP] == [(f"{step:.3g} s", between, "0.5 s", f"{0.5 / step - 1:+.1%}")]
    cells = (f"{planned:,.0f}", "", f"{rate:,.0f}", f"{rate / planned - 1:+.1%}")
    assert shown[TOKENS] == [cells]
    # What the process itself takes is not set beside the memory of tensors.
    whole = write_run("cpu", recipe=on_juwels(), results=results | {"device": "cpu"})
    assert rows(whole)[MEMORY][0][2] == "not measured"
    first = plan["memory"]["by_stage"][0]["peak_bytes"] / 2**30
    assert shown[MEMORY] == [(f"{first:.1f} GiB", "", "33.0 GiB", f"{33 / first - 1:+.1%}")]
    # From the start of the first record, which took 0.1 s, to the last of 70 a second apart.
    assert shown[HOURS][0][2] == f"{69.1 * 4 / 3600:,.4g}"


def test_energy_without_a_counter_is_not_measured(write_run: runs.WriteRun) -> None:
    energy = said_by_the_plan()["bill"]["energy_kwh"]
    nothing = runs.energy_line(60, devices=(None, 0, 240), hosts=(None, 0, 60))
    lines = [*runs.history_lines(60), nothing]
    for shown in (
        rows(write_run("silent", recipe=on_juwels())),
        rows(write_run("uncounted", recipe=on_juwels(), lines=lines)),
    ):
        assert shown[ENERGY] == [(f"{energy:,.0f} kWh", "", "not measured", "—")]
        assert not shown.keys() & {COUNTED, POWER}


def test_energy_is_next_to_the_rated_energy(write_run: runs.WriteRun) -> None:
    def energy(name: str, *lines: dict[str, Any], killed: bool = False) -> dict[str, Any]:
        journal = [*runs.history_lines(60), *lines]
        return rows(write_run(name, recipe=on_juwels(), lines=journal, killed=killed))

    # 4 devices of 400 W at the most, for an hour, of which half was counted: 600 Wh are 300 W.
    half = runs.energy_line(60, devices=(2_160_000, 7_200, 14_400), hosts=(None, 0, 3_600))
    whole = runs.energy_line(60, devices=(4_320_000, 14_400, 14_400), hosts=(None, 0, 3_600))
    shown = energy("half", half)
    assert shown[ENERGY][0][2] == "not measured"
    assert shown[COUNTED] == [("0.8 kWh", "", "0.6 kWh", "-25.0%")]
    assert shown[POWER] == [("400 W", "", "300 W", "-25.0%")]
    planned = said_by_the_plan()["bill"]["energy_kwh"]
    shown = energy("whole", half, whole)
    assert shown[ENERGY][0][2:] == ("1.2 kWh", f"{1.2 / planned - 1:+.1%}")
    assert energy("killed", whole, killed=True)[ENERGY][0][2] == "not measured"


def test_planned_emissions_are_next_to_measured_emissions(write_run):
    whole = runs.energy_line(60, devices=(4_320_000, 14_400, 14_400), hosts=(None, 0, 3_600))
    lines, tree = [*runs.history_lines(60), whole], on_juwels()
    name = "CO2e of the devices' energy, whole run"
    tree["cluster"]["electricity"]["grams_co2e_per_kwh"] = None
    assert name not in rows(write_run("unknown", recipe=tree, lines=lines))
    tree["cluster"]["electricity"]["grams_co2e_per_kwh"] = 100.0
    shown = rows(write_run("known", recipe=tree, lines=lines))
    planned = said_by_the_plan()["bill"]["energy_kwh"] / 10
    (row,) = shown[name]
    assert row == (f"{planned:,.0f} kg", "", "0.12 kg", f"{0.12 / planned - 1:+.1%}")


def test_the_parts_of_the_planned_step_add_up(write_run: runs.WriteRun) -> None:
    entries = load_entries([write_run(recipe=on_juwels())])
    grid = parts_grid(entries, [plan_of(on_juwels())])
    shares = [float(row[1].partition("(")[2].rstrip("%)")) for row in grid.rows]
    assert grid.rows[0][0] == "microbatches"
    assert abs(sum(shares) - 100) < 0.3


def test_a_page_with_a_plan_has_both_tables(write_run, tmp_path: Path) -> None:
    text = runs.read_report([write_run("planned", recipe=on_juwels())], tmp_path).text
    assert f"{said_by_the_plan()['time']['step_seconds']:.3g} s" in text
    assert "part of the planned step" in text
    assert "Planned and measured" in text
    without = write_run("not planned")
    assert rows(without) == {}
    assert "Planned and measured" not in runs.read_report([without], tmp_path).text


def test_each_run_with_a_plan_has_a_row(write_run: runs.WriteRun) -> None:
    there = write_run("there", recipe=on_juwels(), lines=[])
    shown = rows(write_run("here"), there)
    assert [cells[0] for cells in shown[STEP]] == ["there"]
    assert shown[STEP][0][3:] == ("not measured", "—")


def test_a_recipe_of_another_version_or_an_unmeasured_device_has_no_planned_step() -> None:
    assert plan_of(on_juwels() | {"no_such_key": 1}) is None
    blind = at_home("bloom1b7", "cluster.hardware.gemm_teraflops={}")
    unmeasured = plan_of(blind.model_dump(mode="json"))
    assert unmeasured is not None
    assert unmeasured.time is None
    local = at_home("teuken7b", "cluster.hardware=none").model_dump(mode="json")
    assert plan_of(local) is None
