"""A sweep's results over the keys that its commands named."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from components.report.outcome import load_entries
from components.report.page import write_report
from components.report.sweep import RESULTS, named_by_values, sweep_figure, sweep_of
from tests.components.report.conftest import (
    WriteRun,
    earlier_results_tree,
    environment_tree,
    recipe_tree,
    results_tree,
)


def write_points(write_run: WriteRun, points: Sequence[dict[str, Any]]) -> list[Path]:
    """Write a run a point; the words of its command are those of the point."""
    runs = []
    for place, point in enumerate(points):
        tree = recipe_tree()
        for key, value in point.items():
            section, _, name = key.partition(".")
            tree[section] = {**tree.get(section, {}), name: value}
        results = results_tree(60)
        final = 3.0 - place / 10
        results["held_out"] |= {"final": final, "final_unweighted": final + 1}
        run = write_run(f"sweep/{place}", recipe=tree, results=results)
        words = [f"{key}={value}" for key, value in point.items()]
        command = ["python", "run.py", "recipe=walnut7b", *words, f"run=somewhere/{place}"]
        (run / "environment.json").write_text(
            json.dumps(environment_tree() | {"command": command})
        )
        runs.append(run)
    return runs


def test_one_key_is_the_axis_in_the_order_of_its_values(write_run: WriteRun) -> None:
    runs = write_points(write_run, [{"optimizer.lr": lr} for lr in (3e-4, 1e-4, 1e-3)])
    entries = load_entries(runs)
    sweep = sweep_of(entries)
    assert sweep is not None
    assert (sweep.key, sweep.values) == ("optimizer.lr", (3e-4, 1e-4, 1e-3))
    figure = sweep_figure(entries, sweep, RESULTS["swept_loss"])
    assert figure is not None
    [points] = figure.data
    assert list(points.x) == [1e-4, 3e-4, 1e-3]
    assert list(points.y) == [2.9, 3.0, 2.8]
    assert figure.layout.xaxis.type == "log"


def test_runs_of_earlier_versions_are_drawn_by_the_mean_that_they_have(
    write_run: WriteRun, tmp_path: Path
) -> None:
    runs = write_points(write_run, [{"optimizer.lr": lr} for lr in (1e-4, 3e-4, 1e-3)])
    for place, run in enumerate(runs):
        earlier = earlier_results_tree(60, final=4.0 - place / 10)
        (run / "results.json").write_text(json.dumps(earlier))
    html = write_report(runs, tmp_path / "report.html").read_text("utf-8")
    assert "chart-swept_plain" in html
    assert "chart-swept_loss" not in html


def test_a_large_value_on_the_axis_keeps_its_digits(write_run: WriteRun) -> None:
    sizes = (4_096, 1_048_576, 33_554_432)
    points = [{"budget.global_batch_tokens": tokens} for tokens in sizes]
    entries = load_entries(write_points(write_run, points))
    sweep = sweep_of(entries)
    assert sweep is not None
    figure = sweep_figure(entries, sweep, RESULTS["swept_loss"])
    assert figure is not None
    assert list(figure.layout.xaxis.ticktext) == ["4,096", "1,048,576", "33,554,432"]


def test_a_second_key_tells_series_apart(write_run: WriteRun) -> None:
    points = [
        {"optimizer.lr": lr, "model.ffn_dim": width}
        for width in (420, 840)
        for lr in (1e-4, 2e-4, 4e-4)
    ]
    entries = load_entries(write_points(write_run, points))
    sweep = sweep_of(entries)
    assert sweep is not None
    figure = sweep_figure(entries, sweep, RESULTS["swept_loss"])
    assert figure is not None
    assert [trace.name for trace in figure.data] == ["model.ffn_dim=420", "model.ffn_dim=840"]
    assert [len(trace.x) for trace in figure.data] == [3, 3]


def test_what_merely_follows_from_a_key_is_not_swept(write_run: WriteRun) -> None:
    runs = write_points(write_run, [{"parallelism.tensor": size} for size in (1, 2, 4)])
    for place, run in enumerate(runs):
        tree = json.loads((run / "recipe.json").read_text())
        tree["parallelism"]["data"] = 4 // 2**place
        (run / "recipe.json").write_text(json.dumps(tree))
    sweep = sweep_of(load_entries(runs))
    assert sweep is not None
    assert (sweep.key, set(sweep.series)) == ("parallelism.tensor", {""})


def test_names_are_categories_and_a_point_without_the_word_has_its_default(
    write_run: WriteRun,
) -> None:
    runs = write_points(write_run, [{}, {"cluster.name": "b"}, {"cluster.name": "c"}])
    entries = load_entries(runs)
    sweep = sweep_of(entries)
    assert sweep is not None
    assert sweep.values == ("workbench", "b", "c")
    figure = sweep_figure(entries, sweep, RESULTS["swept_rate"])
    assert figure is not None
    assert (figure.layout.xaxis.type, figure.data[0].mode) == ("category", "markers")


def test_runs_that_differ_by_their_folders_alone_are_no_sweep(write_run: WriteRun) -> None:
    assert sweep_of(load_entries(write_points(write_run, [{}, {}, {}]))) is None


def test_that_one_run_was_profiled_makes_it_no_other_series(write_run: WriteRun) -> None:
    points = [{"optimizer.lr": lr} for lr in (1e-4, 3e-4)]
    watched = {"optimizer.lr": 1e-3, "profiler.steps": 3}
    sweep = sweep_of(load_entries(write_points(write_run, [*points, watched])))
    assert sweep is not None
    assert (sweep.key, set(sweep.series)) == ("optimizer.lr", {""})


def test_two_runs_are_a_comparison_not_a_sweep(write_run: WriteRun) -> None:
    runs = write_points(write_run, [{"optimizer.lr": lr} for lr in (1e-4, 1e-3)])
    assert sweep_of(load_entries(runs)) is None


def test_a_result_that_no_run_has_is_not_drawn(write_run: WriteRun) -> None:
    entries = load_entries(write_points(write_run, [{"optimizer.lr": x} for x in (1, 2, 3)]))
    sweep = sweep_of(entries)
    assert sweep is not None
    without = [replace(e, outcome=replace(e.outcome, training_loss=None)) for e in entries]
    assert sweep_figure(without, sweep, RESULTS["swept_training"]) is None


def test_the_page_draws_the_sweep(write_run: WriteRun, tmp_path: Path) -> None:
    runs = write_points(write_run, [{"optimizer.lr": lr} for lr in (1e-4, 3e-4, 1e-3)])
    html = write_report(runs, tmp_path / "report.html").read_text("utf-8")
    assert "Over optimizer.lr" in html
    assert "chart-swept_loss" in html
    assert '"name":"optimizer.lr=0.0003"' in html  # the curves, too, are told by their values


def test_runs_of_one_point_keep_the_names_of_their_folders(write_run: WriteRun) -> None:
    points = [{"optimizer.lr": lr} for lr in (1e-4, 1e-4, 1e-3)]
    entries = load_entries(write_points(write_run, points))
    named = named_by_values(entries, sweep_of(entries))
    assert [entry.label for entry in named] == ["0", "1", "2"]
