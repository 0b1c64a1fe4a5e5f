"""The steps of a run are a sequence of records that holds numbers alone."""

import gc
import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.report.figures import step_figure
from components.report.outcome import ReportEntry, load_run, outcome_of
from components.report.tables import count_incidents
from components.run.records import StepMetrics
from components.run.step_table import StepTable
from components.tracking.run_export import MetricsRow, read_run_export
from tests.components.tracking.runs import START, step_line, write_run

STEPS = 20_000
MOST_STEPS, MOST_BYTES = 1_400_000, 200e6


def record(step: int, loss: float, further: float | None = None) -> StepMetrics:
    return StepMetrics(**{**step_line(step), "time": 1.0, "loss": loss, "mtp_loss": further})


FURTHER = st.none() | st.floats(min_value=0)


@given(st.lists(st.tuples(st.integers(1, 9), st.floats(), FURTHER, st.booleans())))
def test_the_table_equals_a_mapping_by_step(drawn: Any) -> None:
    table, expected = StepTable(), dict[int, StepMetrics]()
    for step, loss, further, goes_back in drawn:
        if goes_back:
            lost = [expected.pop(one) for one in sorted(expected) if one > step]
            assert [*table.remove_after(step)] == [one.seconds for one in lost]
        else:
            expected[step] = record(step, loss, further)
            table.insert_step(expected[step])
    ordered = [expected[step] for step in sorted(expected)]
    assert [*map(str, table)] == [*map(str, ordered)]
    assert len(table) == len(ordered)
    if ordered:
        assert str(table[-1]) == str(ordered[-1])
        assert [*table.copy_column("tokens")] == [one.tokens for one in ordered]


def test_shifting_tokens_copies_no_steps() -> None:
    table = StepTable()
    table.insert_step(record(1, math.nan))
    moved = StepTable(table.values, 1_000)
    assert moved.values is table.values
    assert [one.tokens for one in moved] == [*moved.copy_column("tokens")] == [1_512]


def test_a_loaded_run_has_no_step_objects(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [*START, *map(step_line, range(1, 21))])
    loaded, export = load_run(run), read_run_export(run)
    assert len(loaded.history.steps) == 20
    assert len(loaded.history.steps.values) * 8 / 20 < MOST_BYTES / MOST_STEPS
    assert count_objects(StepMetrics) == 0
    assert max(count_objects(MetricsRow) for _ in export.metrics_rows) <= 3


def count_objects(kind: type) -> int:
    gc.collect(0)
    return sum(type(one) is kind for one in gc.get_objects())


@pytest.mark.long
def test_a_report_and_a_sync_use_few_bytes_a_step(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", START)
    peaks = [_peak_bytes(run)]
    with (run / "metrics.jsonl").open("a") as stream:
        for step in range(1, STEPS + 1):
            stream.write(json.dumps({**step_line(step), "time": float(step)}) + "\n")
    peaks.append(_peak_bytes(run))
    assert (peaks[1] - peaks[0]) / STEPS < MOST_BYTES / MOST_STEPS


def _peak_bytes(run: Path) -> int:
    gc.collect()
    tracemalloc.start()
    loaded = load_run(run)
    entry = ReportEntry(label="run", run=loaded, outcome=outcome_of(loaded))
    count_incidents(entry)
    step_figure([entry], "lr")
    del loaded, entry
    count = sum(1 for _ in read_run_export(run).metrics_rows)
    assert count in {1, STEPS + 1}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak
