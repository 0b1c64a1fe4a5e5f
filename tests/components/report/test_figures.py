"""What the charts show, read back from the figures."""

import json
import math
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.report import figures
from components.report.outcome import load_entries
from tests.components.report import conftest as runs

_POINTS = 20


@given(st.lists(st.floats(), min_size=_POINTS + 1, max_size=200))
def test_thinning_keeps_the_extremes_the_order_and_the_divergence(values):
    assert figures.thin_points([3.0, 1.0, 2.0], 3) == [0, 1, 2]
    kept = figures.thin_points(values, _POINTS)
    finite = [value for value in values if math.isfinite(value)]
    assert kept == sorted(set(kept))
    assert len(kept) <= 1.5 * _POINTS
    if finite:
        shown = [values[i] for i in kept if math.isfinite(values[i])]
        assert (min(shown), max(shown)) == (min(finite), max(finite))
    assert any(not math.isfinite(values[i]) for i in kept) == (len(finite) < len(values))


def test_loss_chart_shows_training_both_means_and_the_unigram(write_run):
    entries = load_entries([write_run()])
    chart, measured = figures.loss_figure(entries), entries[0].run.history.held_out
    training, weighted, plain = chart.data
    assert list(training.y) == [step.loss for step in entries[0].run.history.steps]
    assert list(weighted.x) == list(plain.x) == [m.tokens for m in measured]
    assert list(weighted.y) == [m.weighted_loss for m in measured]
    assert list(plain.y) == [m.loss for m in measured]
    means = ["held-out, weighted as the mixture", "held-out, plain mean over sources"]
    assert [one.name for one in chart.data] == ["training", *means]
    assert chart.layout.shapes[0].y0 == 6.543


def test_the_chart_of_an_earlier_versions_run_has_the_plain_mean_alone(write_run):
    lines = [*map(runs.of_an_earlier_version, runs.history_lines(60))]
    entries = load_entries([write_run(lines=lines, results=runs.earlier_results_tree(60))])
    chart = figures.loss_figure(entries)
    assert [one.name for one in chart.data][1:] == ["held-out, plain mean over sources"]
    assert chart.layout.shapes[0].y0 == 6.6


def test_runs_keep_their_colour_in_every_chart(write_run):
    entries = load_entries([write_run("a"), write_run("b")])
    colors = [figures.choose_color(0), figures.choose_color(1)]
    for field in ("lr", "gradient_norm", "tokens_per_second"):
        assert [t.line.color for t in figures.step_figure(entries, field).data] == colors
    held_out = [t for t in figures.loss_figure(entries).data if t.showlegend]
    assert [t.name for t in held_out] == ["a", "b"]
    assert [t.line.color for t in held_out] == colors


def test_runs_are_distinguishable_without_colors(write_run):
    entries = load_entries([write_run(name) for name in ("a<b", "c", "d")])
    for draw in (figures.loss_figure, partial(figures.step_figure, field="lr")):
        chart = draw(entries)
        figures.tell_apart(chart, entries)
        dashes = {
            trace.name.removesuffix(", training"): trace.line.dash for trace in chart.data
        }
        assert dashes == {"a<b": "solid", "c": "dash", "d": "dot"}
    chart = figures.sources_figure(entries)
    assert chart is not None
    figures.tell_apart(chart, entries)
    assert [trace.marker.symbol for trace in chart.data[-3:]] == ["circle", "square", "diamond"]
    assert [figures.choose_mark(place) for place in range(3)] == ["●", "■", "◆"]


def test_many_runs_have_no_legend(write_run):
    entries = load_entries([write_run(f"run{place}") for place in range(9)])
    for some, listed in ((entries[:8], None), (entries, False)):
        chart = figures.loss_figure(some)
        figures.tell_apart(chart, some)
        assert chart.layout.showlegend is listed


def test_a_single_run_keeps_its_lines(write_run):
    entries = load_entries([write_run("training")])
    chart = figures.loss_figure(entries)
    before = chart.to_json()
    figures.tell_apart(chart, entries)
    assert chart.to_json() == before


def test_sources_are_sorted_by_their_last_loss(write_run):
    entries = load_entries([write_run()])
    chart = figures.sources_figure(entries)
    assert chart is not None
    final = runs.results_tree(60)["held_out"]["by_source"]
    means = ["weighted as the mixture", "plain mean over sources"]
    order = [*means, *sorted(final, key=final.__getitem__)]
    assert list(chart.layout.yaxis.categoryarray) == order
    titles = ["smoothed unigram", "before training", "training, last step", "held-out, last"]
    assert [trace.name for trace in chart.data] == titles


def test_the_training_loss_is_next_to_its_comparable_mean(write_run):
    entries = load_entries([write_run()])
    chart = figures.sources_figure(entries)
    assert chart is not None
    marks = {t.name: dict(zip(t.y, t.x, strict=True)) for t in chart.data}
    last = entries[0].run.history.steps[-1].loss
    assert marks["training, last step"] == {"weighted as the mixture": last}
    held_out = marks["held-out, last"]
    assert held_out["weighted as the mixture"] == pytest.approx(last + 0.42)
    assert held_out["plain mean over sources"] == pytest.approx(last + 0.6)

    earlier = write_run("earlier", lines=[], results=runs.earlier_results_tree(60))
    chart = figures.sources_figure(load_entries([earlier]))
    assert chart is not None
    assert "training, last step" not in [trace.name for trace in chart.data]


def test_a_run_without_steps_gives_empty_charts(write_run):
    entries = load_entries([write_run(killed=True, lines=[])])
    assert figures.sources_figure(entries) is None
    for chart in (figures.loss_figure(entries), figures.step_figure(entries, "lr")):
        assert all(len(trace.x) == 0 for trace in chart.data)


def test_a_resume_is_marked_where_it_happened(write_run):
    resume = runs.mark_line("resume", 20)
    chart = figures.loss_figure(load_entries([write_run(killed=True, lines=[resume])]))
    assert [shape.x0 for shape in chart.layout.shapes] == [163_840]
    json.loads(chart.to_json())
