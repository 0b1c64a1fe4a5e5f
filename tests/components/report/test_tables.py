"""Tables: what differs between runs, what was published, assumed and measured."""

import json

import pytest

from components.report import figure_tables, tables
from components.report.outcome import load_entries
from components.report.tables import key_figures
from tests.components.report import conftest as given


@pytest.fixture
def two_runs(write_run):
    first = write_run("a")
    recipe = given.recipe_tree() | {"description": "another"}
    recipe["model"]["dim"], recipe["scale"] = 256, {"name": "full", "shrink": "none"}
    return [first, write_run("b", recipe=recipe, killed=True)]


def _rows(grid):
    return {row[0]: row[1:] for row in grid.rows}


def _summary(runs):
    """Return the cells of the terminal's table of runs by their column."""
    table = tables.terminal_table(tables.summary_grid(load_entries(runs)))
    return {column.header: list(column.cells) for column in table.columns}


def _cards(run):
    return {card.title: card for card in key_figures(load_entries([run])[0])}


def test_only_overrides_that_differ_are_listed(two_runs):
    differing = tables.differing_keys(load_entries(two_runs))
    assert differing == {
        "model.dim": ("128", "256"),
        "scale.name": ("small", "full"),
        "scale.shrink": ("—", "none"),
        "scale.shrink.dim": ("128", "—"),
    }


def test_a_key_that_one_recipe_lacks_differs(write_run):
    recipe = given.recipe_tree()
    del recipe["optimizer"]
    entries = load_entries([write_run("a"), write_run("b", recipe=recipe)])
    assert tables.differing_keys(entries)["optimizer.lr"] == ("3e-05", "—")


def test_summary_has_one_row_a_run(two_runs):
    columns = _summary(two_runs)
    differs = "model.dim=256, scale.name=full, scale.shrink.dim=—, scale.shrink=none"
    assert columns["differs in"][1:] == [differs]
    assert columns["status"] == ["finished", "unfinished"]
    assert columns["held-out loss, weighted"] == ["2.535", "2.535"]
    assert columns["held-out loss, plain mean"] == ["2.715", "2.715"]


def test_the_summary_has_the_step_of_the_last_evaluation(write_run):
    before, after = given.held_out_line(0), given.held_out_line(1)
    lines = [before, given.step_line(1), after, given.step_line(2)]
    columns = _summary([write_run(lines=lines, killed=True)])
    assert columns["held-out loss, weighted"] == ["8.314 at step 1"]


def test_keys_of_the_user_come_first_and_many_are_counted(write_run):
    runs = []
    for place, name in enumerate(("a", "b")):
        model = {f"key_{number}": place for number in range(9)}
        run = write_run(name, recipe=given.recipe_tree() | {"model": model})
        command = {"command": ["python", "run.py", f"model.key_7={place}"]}
        (run / "environment.json").write_text(json.dumps(command))
        runs.append(run)
    grid = tables.summary_grid(load_entries(runs))
    assert grid.rows[1][1] == ("model.key_7=1, model.key_0=1, model.key_1=1, and 6 more keys")


def test_published_figures_are_next_to_the_same_quantity(write_run):
    rows = _rows(figure_tables.published_grid(load_entries([write_run()])))
    assert rows["parameters"] == ("7,452,725,248 parameters", "card", "1,234,567 parameters")
    assert rows["time: step seconds"] == ("12.5 s", "table 3", "0.5 s")
    assert rows["energy: node"] == ("2.5 MWh", "press", "—")
    assert rows["energy: total"] == ("600 MWh", "press", "—")


def test_groups_of_published_figures_are_walked(write_run):
    steps = {"value": 9, "unit": "steps", "source": "s"}
    active = {"value": 2, "unit": "", "source": "s"}
    published = {"run": {"steps": steps}, "active_parameters": active}
    recipe = given.recipe_tree() | {"published": published}
    rows = _rows(figure_tables.published_grid(load_entries([write_run("b", recipe=recipe)])))
    active = given.derived_tree()["parameters"]["active"]
    beside = {"active parameters": ("2", "s", f"{active:,} parameters")}
    assert rows == {"run: steps": ("9 steps", "s", "60")} | beside


def test_a_miniature_is_named_at_the_head_of_its_column(two_runs):
    columns = figure_tables.published_grid(load_entries(two_runs)).columns
    assert columns[-2:] == ("a, miniature", "b")


def test_device_hours_sum_over_all_processes(write_run):
    """By hand: 2 s to start, a step of 3 s; after a gap of 100 s 4 s to resume, and 3 s."""
    lines = [
        given.mark_line("start", 0) | {"time": 102.0, "seconds": 2.0},
        given.step_line(1) | {"time": 105.0, "seconds": 3.0},
        given.mark_line("resume", 1) | {"time": 209.0, "seconds": 4.0},
        given.step_line(2) | {"time": 212.0, "seconds": 3.0},
    ]
    figure = {"value": 1, "unit": "", "source": "card"}
    recipe = given.recipe_tree() | {"published": {"device_hours": figure, "days": figure}}
    run = write_run(
        recipe=recipe, lines=lines, results=given.results_tree(2) | {"seconds": 7.0}
    )
    rows = _rows(figure_tables.published_grid(load_entries([run])))
    held = 2 + 3 + 4 + 3
    assert rows["device hours"][2] == f"{held * 4 / 3600:.4g} h"
    assert rows["days"][2] == f"{held / 86400:.4g} d"
    assert _cards(run)["steps"].notes == ("of 60 planned", "in 12.0 s")


@pytest.mark.parametrize(("ranks", "said"), [(1, "1 rank on cpu"), (4, "4 ranks on cpu")])
def test_one_rank_is_singular(write_run, ranks, said):
    run = write_run()
    (run / "derived.json").write_text(json.dumps(given.derived_tree() | {"ranks": ranks}))
    assert _cards(run)["tokens per second"].notes[1].endswith(f"; {said}")


def test_a_run_of_another_recipe_leaves_foreign_figures_blank(write_run):
    other = write_run("b", recipe=given.recipe_tree() | {"published": {}})
    rows = _rows(figure_tables.published_grid(load_entries([write_run("a"), other])))
    assert rows["parameters"][-2:] == ("1,234,567 parameters", "—")


def test_assumed_values_have_their_reason_and_run(write_run):
    first = write_run("a")
    row = ("schedule.warmup_tokens", "2,000,000", "no source says")
    assert figure_tables.assumed_grid(load_entries([first])).rows == [row]
    other = write_run("b", recipe=given.recipe_tree() | {"assumed": {}})
    assert figure_tables.assumed_grid(load_entries([first, other])).rows == [(*row, "a")]


def test_flop_rates_are_given_under_both_conventions(write_run):
    runs = [write_run("a"), write_run("b")]
    rows = _rows(tables.flops_grid(load_entries(runs[:1])))
    both = tables.flops_grid(load_entries(runs))
    assert both.columns == ("", "a", "b")
    for name, token, device in (("full", "8.00", "32.8"), ("causal", "7.60", "31.1")):
        assert rows[f"one token, {name} attention"] == (f"{token} MFLOP",)
        assert rows[f"one device, {name} attention"] == (f"{device} GFLOP/s",)
        # What all runs have is said once.
        assert dict(both.alike)[f"one token, {name} attention"] == f"{token} MFLOP"


def test_common_values_of_environments_are_stated_once(two_runs):
    (two_runs[1] / "environment.json").write_text('{"python": "3.12.1", "commit": "0123abc"}')
    grid = tables.environment_grid(load_entries(two_runs))
    assert ("commit", "0123abc") in grid.alike
    assert _rows(grid)["python"] == ("3.11.9", "3.12.1")
    assert "commit" not in _rows(grid)
    assert _rows(grid)["command"][0] == "python run.py recipe=walnut7b 'name=two words'"


def test_incidents_count_kills_and_resumes(write_run):
    folder = write_run(killed=True, tail='{"kind": "st')
    rows = _rows(tables.grid_by_quantity(load_entries([folder]), tables.count_incidents))
    assert rows["half-written lines, ignored"] == ("1",)
    assert rows["checkpoints written"] == ("3",)
    assert rows["results.json"] == ("absent: killed, or still training",)


def test_key_figures_name_active_parameters(write_run):
    folder = write_run()
    derived = given.derived_tree() | {"parameters": {"total": 2_000_000, "active": 500_000}}
    (folder / "derived.json").write_text(json.dumps(derived))
    assert _cards(folder)["parameters"].notes == ("2,000,000", "500 k active per token")
