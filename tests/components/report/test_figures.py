"""What the charts show, read back from the figures."""

import json
import math
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.report import figures
from components.report.outcome import load_entries
from tests.components.report.conftest import mark_line

_POINTS = 20


@given(st.lists(st.floats(), min_size=_POINTS + 1, max_size=200))
def test_thinning_keeps_the_extremes_the_order_and_the_divergence(values):
    kept = figures.thinned(values, _POINTS)
    finite = [value for value in values if math.isfinite(value)]
    assert kept == sorted(set(kept))
    assert len(kept) <= 1.5 * _POINTS
    if finite:
        shown = [values[i] for i in kept if math.isfinite(values[i])]
        assert (min(shown), max(shown)) == (min(finite), max(finite))
    assert any(not math.isfinite(values[i]) for i in kept) == (len(finite) < len(values))


def test_a_short_run_is_drawn_whole():
    assert figures.thinned([3.0, 1.0, 2.0], 3) == [0, 1, 2]


def test_loss_chart_shows_training_held_out_and_unigram(write_run):
    entries = load_entries([write_run()])
    chart = figures.loss_figure(entries)
    training, held_out = chart.data
    assert list(training.y) == [step.loss for step in entries[0].run.journal.steps]
    assert list(held_out.x) == [m.tokens for m in entries[0].run.journal.held_out]
    assert chart.layout.shapes[0].y0 == 6.543


def test_runs_keep_their_colour_in_every_chart(write_run):
    entries = load_entries([write_run("a"), write_run("b")])
    for field in ("lr", "gradient_norm", "tokens_per_second"):
        assert [t.line.color for t in figures.step_figure(entries, field).data] == [
            figures.colour(0),
            figures.colour(1),
        ]
    held_out = [t for t in figures.loss_figure(entries).data if t.showlegend]
    assert [(t.name, t.line.color) for t in held_out] == [
        ("a", figures.colour(0)), ("b", figures.colour(1)),
    ]  # fmt: skip


def test_runs_are_told_apart_without_colours_too(write_run):
    entries = load_entries([write_run(name) for name in ("a<b", "c", "d")])
    for draw in (figures.loss_figure, partial(figures.step_figure, field="lr")):
        chart = draw(entries)
        figures.tell_apart(chart, entries)
        dashes = {
            trace.name.removesuffix(", training"): trace.line.dash for trace in chart.data
        }
        assert dashes == {"a&lt;b": "solid", "c": "dash", "d": "dot"}
    chart = figures.sources_figure(entries)
    assert chart is not None
    figures.tell_apart(chart, entries)
    assert [trace.marker.symbol for trace in chart.data[-3:]] == ["circle", "square", "diamond"]
    assert [figures.mark(place) for place in range(3)] == ["●", "■", "◆"]


def test_many_runs_are_not_listed_beside_their_curves(write_run):
    entries = load_entries([write_run(f"run{place}") for place in range(9)])
    for some, listed in ((entries[:8], None), (entries, False)):
        chart = figures.loss_figure(some)
        figures.tell_apart(chart, some)
        assert chart.layout.showlegend is listed


def test_a_run_alone_keeps_its_lines(write_run):
    entries = load_entries([write_run("training")])
    chart = figures.loss_figure(entries)
    before = chart.to_json()
    figures.tell_apart(chart, entries)
    assert chart.to_json() == before


def test_sources_stand_in_the_order_of_their_final_loss(write_run):
    entries = load_entries([write_run()])
    chart = figures.sources_figure(entries)
    assert chart is not None
    final = entries[0].outcome.final_by_source
    assert list(chart.layout.yaxis.categoryarray) == sorted(final, key=final.__getitem__)
    assert [trace.name for trace in chart.data] == ["smoothed unigram", "first", "final"]


def test_without_a_held_out_measurement_there_is_no_chart_of_sources(write_run):
    assert figures.sources_figure(load_entries([write_run(killed=True, lines=[])])) is None


@pytest.mark.parametrize(
    "draw", [figures.loss_figure, partial(figures.step_figure, field="tokens_per_second")]
)
def test_a_run_without_steps_gives_an_empty_chart(write_run, draw):
    chart = draw(load_entries([write_run(killed=True, lines=[])]))
    assert all(len(trace.x) == 0 for trace in chart.data)


def test_a_resume_is_marked_where_it_happened(write_run):
    resume = mark_line("resume", 20)
    chart = figures.loss_figure(load_entries([write_run(killed=True, lines=[resume])]))
    assert [shape.x0 for shape in chart.layout.shapes] == [163_840]
    json.loads(chart.to_json())
