"""What is kept of a run that was killed, resumed, went back, or all of that."""

import json
from pathlib import Path
from typing import Any

import pytest

from components.errors import RecipeError
from components.run.history import held_until, read_history
from tests.components.report.conftest import energy_line, mark_line, write_history


def _step(step: int, loss: float) -> dict[str, Any]:
    return {
        "kind": "step", "step": step, "tokens": step * 100, "loss": loss, "lr": 1e-3,
        "auxiliary_loss": 0.0, "expert_load": 1.0, "loss_scale": 1.0,
        "gradient_norm": 1.0, "seconds": 0.5, "tokens_per_second": 200.0,
    }  # fmt: skip


def _held_out(step: int, loss: float) -> dict[str, Any]:
    record = {"kind": "held_out", "step": step, "tokens": step * 100, "loss": loss}
    return record | {"by_source": {"en": loss}, "seconds": 0.125}


def _read(folder: Path, *lines: dict[str, Any], tail: str = "") -> Any:
    write_history(folder, lines, tail)
    return read_history(folder)


def test_reads_measurements_and_events(tmp_path):
    history = _read(tmp_path, _step(1, 5.0), _held_out(1, 5.5), mark_line("checkpoint", 1))
    assert [(s.step, s.tokens, s.loss) for s in history.steps] == [(1, 100, 5.0)]
    assert history.held_out[0].by_source == {"en": 5.5}
    assert [(event.kind, event.step, event.cause) for event in history.events] == [
        ("checkpoint", 1, "due")
    ]
    assert (history.repeated_steps, history.half_written_lines) == (0, 0)


def test_energy_of_steps_thrown_away_was_used_and_takes_no_time(tmp_path):
    used = [
        energy_line(step, devices=(10.0 * turn, turn, 2 * turn), hosts=(None, 0, turn))
        for turn, step in enumerate((1, 2, 2), start=1)
    ]
    lines = (
        _step(1, 5.0),
        used[0],
        _step(2, 4.0),
        used[1],
        mark_line("resume", 1),
        _step(2, 3.5),
    )
    without, history = _read(tmp_path, *lines), _read(tmp_path, *lines, used[2])
    devices, hosts = history.energy["devices"], history.energy["hosts"]
    assert (devices.joules, devices.counted_seconds, devices.passed_seconds) == (30, 3, 6)
    assert hosts.energy_kwh is None
    assert history.goodput == without.goodput
    assert _read(tmp_path, _step(1, 5.0)).energy == {}


@pytest.mark.parametrize("kind", ["resume", "roll_back"])
def test_of_a_step_computed_twice_the_last_counts(tmp_path, kind):
    history = _read(tmp_path, _step(1, 5.0), _step(2, 4.0), mark_line(kind, 1), _step(2, 3.5))
    assert [s.loss for s in history.steps] == [5.0, 3.5]
    assert history.repeated_steps == 1


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path):
    start = mark_line("start", 0)
    history = _read(tmp_path, start, _step(1, 5.0), _step(2, 4.0), start, _step(1, 5.0))
    assert [s.step for s in history.steps] == [1]
    assert history.repeated_steps == 2


def test_what_a_resume_threw_away_does_not_outlive_a_second_kill(tmp_path):
    lost = _step(2, 4.0), _step(3, 3.9), _held_out(3, 4.1)
    history = _read(tmp_path, _step(1, 5.0), *lost, mark_line("resume", 1), _step(2, 3.5))
    assert [(s.step, s.loss) for s in history.steps] == [(1, 5.0), (2, 3.5)]
    assert history.held_out == ()
    assert [event.step for event in history.events_of("resume")] == [1]


def test_a_half_written_last_line_is_left_out_and_counted(tmp_path):
    whole = json.dumps(_step(2, 4.0))
    for cut in (1, 10, len(whole) - 3):
        history = _read(tmp_path, _step(1, 5.0), tail=whole[:cut])
        assert [s.step for s in history.steps] == [1]
        assert history.half_written_lines == 1


def test_each_start_explains_a_half_written_line(tmp_path):
    tail = '{"kind": "step", "st\n' + json.dumps(_step(2, 4.0) | {"time": 9.0}) + '\n{"ki'
    lines = (mark_line("start", 0), _step(1, 5.0), mark_line("resume", 1))
    history = _read(tmp_path, *lines, tail=tail)
    assert [s.step for s in history.steps] == [1, 2]
    assert history.half_written_lines == 2
    with pytest.raises(RecipeError, match=r"metrics\.jsonl:4: is not JSON, and a killed"):
        _read(tmp_path, *lines[:2], tail=tail)


def test_a_line_cut_inside_a_character_is_half_written(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes('{"kind": "held_out", "é'.encode()[:-1])
    assert read_history(tmp_path).half_written_lines == 1


def test_a_run_killed_before_its_first_step_has_an_empty_journal(tmp_path):
    history = read_history(tmp_path)
    assert len(history.steps) == 0
    assert history.goodput.progress_fraction is None


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"kind": "step", "step": 1, "seconds": 0.5}, "tokens is missing"),
        ({"kind": "news", "step": 1, "tokens": 1, "seconds": 0.0}, "cause is missing"),
        ({**_step(1, 5.0), "step": None}, "step: input should be a valid integer, got None"),
        ({**_step(1, 5.0), "time": "noon"}, "time: input should be a valid number, got 'noon'"),
        ({**_held_out(1, 5.0), "by_source": None}, "by_source: input should be a"),
    ],
)
def test_refuses_a_record_of_another_version(tmp_path, line, problem):
    with pytest.raises(RecipeError, match=problem) as caught:
        _read(tmp_path, line)
    assert caught.value.path.endswith(".jsonl:1")


# By hand: 6 s of preflight, 5 s until the ranks begin, 2 s to start and a step of 3 s; after a
# day in the queue the same job again, whose ranks tell why those before ended.
TWO_JOBS = [
    mark_line("preflight", 0) | {"time": 106.0, "seconds": 6.0},
    mark_line("start", 0) | {"time": 113.0, "seconds": 2.0},
    _step(1, 5.0) | {"time": 116.0, "seconds": 3.0},
    mark_line("preflight", 1) | {"time": 86_406.0, "seconds": 6.0},
    mark_line("job_end", 1) | {"time": 86_406.5, "seconds": 0.0},
    mark_line("restart", 1, restart=0) | {"time": 86_412.0, "seconds": 86_296.0},
    mark_line("resume", 1) | {"time": 86_413.0, "seconds": 2.0},
    _step(2, 5.0) | {"time": 86_416.0, "seconds": 3.0},
]
WITHOUT_PREFLIGHT = [line for line in TWO_JOBS if line["kind"] != "preflight"]


def test_devices_are_held_from_the_preflight_of_a_job_and_not_in_the_queue(tmp_path):
    account = _read(tmp_path, *TWO_JOBS).goodput
    assert account.held_seconds == 2 * (6 + 5 + 2 + 3)
    assert account.lost_seconds["between processes"] == 86_400 - 116
    assert account.lost_seconds["starting"] == 2 * (6 + 5 + 2)
    assert account.lost_seconds["elsewhere"] == 0


def test_a_process_that_tells_why_another_ended_did_not_hold_its_devices_since(tmp_path):
    account = _read(tmp_path, *WITHOUT_PREFLIGHT).goodput
    assert account.held_seconds == 2 * (2 + 3)


def test_ranks_that_start_again_in_their_job_held_its_devices_all_along():
    lines = [
        line | ({"evidence": {"restart": 1}} if line["kind"] == "restart" else {})
        for line in WITHOUT_PREFLIGHT
    ]
    assert held_until(86_416.0, lines) == 86_416 - 111


def test_seconds_of_all_processes_run_until_now_and_records_come_in_any_order():
    energy = {"kind": "energy", "time": 86_416.5, "step": 2, "tokens": 2}
    assert held_until(86_420.0, [energy, *reversed(TWO_JOBS)]) == 2 * (6 + 5 + 2 + 3) + 4


def test_goodput_is_the_time_of_the_steps_that_count(tmp_path):
    """By hand: 2 s to start, 2 steps of 3 s, one of them lost, a gap of 10 s, it again."""
    history = _read(
        tmp_path,
        mark_line("start", 0) | {"time": 102.0, "seconds": 2.0},
        _step(1, 5.0) | {"time": 105.0, "seconds": 3.0},
        mark_line("checkpoint", 1) | {"time": 106.0, "seconds": 1.0},
        _step(2, 5.0) | {"time": 109.0, "seconds": 3.0},
        mark_line("job_end", 1) | {"time": 118.0, "seconds": 0.0},  # by the job after it
        mark_line("resume", 1) | {"time": 123.0, "seconds": 4.0},
        _held_out(1, 5.0) | {"time": 124.0, "seconds": 1.0},
        mark_line("skip", 1) | {"time": 126.0, "seconds": 2.0},
        _step(2, 5.0) | {"time": 130.0, "seconds": 3.5},
        mark_line("job_end", 2) | {"time": 150.0, "seconds": 0.0},
    )
    account = history.goodput
    assert account.wall_seconds == 30.0
    assert account.progress_seconds == 6.5
    assert account.progress_fraction == pytest.approx(6.5 / 30.0)
    assert account.lost_seconds == {
        "starting": 6.0,
        "between processes": 10.0,
        "steps computed again": 3.0,
        "checkpoints": 1.0,
        "held-out losses": 1.0,
        "guards": 2.0,
        "elsewhere": 0.5,
    }
