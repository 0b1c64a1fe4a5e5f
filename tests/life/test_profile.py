"""Profiled runs as a user meets them: printed, reported, on two ranks, after a resume."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from components.profiling.parts import places_of
from components.profiling.trace import read_trace
from tests.life.conftest import Program, entries, forget_the_end, tiny

ASKED = ("profiler.steps=2", "profiler.first_step=3")
# Operators whose result the host needs: on a device it would wait for them.
READS = {
    *("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"),
    *("aten::_unique2", "aten::unique_dim", "aten::repeat_interleave"),
}
SHORT = tiny("budget.total_tokens=3_072", "checkpoint.every_tokens=1_024")  # six steps


def profile_of(run: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / f"profile/rank-{rank}.json").read_text())
    return found


def reads_of(run: Path) -> set[str]:
    """Name the parts of a step in which the host reads numbers or data-dependent shapes."""
    trace = read_trace(run / "profile/rank-0.trace.json.gz")
    places = places_of(trace)
    return {
        places[event].part_name
        for event in trace.main
        if places[event].in_step and event.name in READS
    }


def parts_of(run: Path, rank: int = 0) -> dict[str, float]:
    return {part: times["seconds"] for part, times in profile_of(run, rank)["parts"].items()}


def test_a_profile_is_printed_kept_and_reported(home: Path, program: Program) -> None:
    run = home / "profiled"
    done = program(*SHORT, *ASKED, f"run={run}")
    assert "profile of rank 0, steps 3, 4, by main thread:" in done.stdout
    assert "report also has ranks" not in done.stdout
    found = profile_of(run, 0)
    assert sum(parts_of(run).values()) == pytest.approx(found["step_seconds"])
    steps = {entry["step"]: entry["seconds"] for entry in entries(run, "step")}
    measured = (steps[3] + steps[4]) / 2  # begins after the reading, ends before the last lines
    assert measured < found["step_seconds"] < 1.5 * measured
    assert parts_of(run)["data"] > 0
    with gzip.open(run / "profile/rank-0.trace.json.gz", "rt") as stream:
        names = {entry["name"] for entry in json.load(stream)["traceEvents"]}
    assert {"step 3", "step 4", "part:core layers.1.attention.core"} <= names
    assert "<h2>Profile</h2>" in (run / "report.html").read_text()
    # Adam's step counters are the host's; nothing else may ask for a number.
    assert reads_of(run) == {"optimizer"}


@pytest.mark.long
def test_a_profile_continues_after_a_rollback(home: Path, program: Program) -> None:
    run = home / "taken_back"
    words = tiny(
        *("budget.total_tokens=3_072", "checkpoint.every_tokens=512", "checkpoint.keep=6"),
        *("guard.non_finite.action=roll_back", "guard.roll_back.skip_steps=3"),
        "guard.inject=[{fault: nan, rank: 0, step: 4}]",
    )
    program(*words, "profiler.steps=4", "profiler.first_step=3", f"run={run}")
    (back,) = entries(run, "roll_back")
    assert back["step"] == 1
    assert profile_of(run, 0)["steps"] == [3, 4, 2, 3]


@pytest.mark.long
def test_profiles_of_two_ranks_show_communication(home: Path, program: Program) -> None:
    run = home / "two"
    done = program(*SHORT, *ASKED, "cluster.ranks=2", "profiler.ranks=[0,1]", f"run={run}")
    assert "the report also has ranks 1" in done.stdout
    for rank in (0, 1):
        assert parts_of(run, rank)["communication"] > 0
    report = (run / "report.html").read_text()
    assert report.count(">communication</td>") == 2


@pytest.mark.long
def test_experts_are_parts_of_a_profile(home: Path, program: Program) -> None:
    run = home / "experts"
    words = (*SHORT, "recipe=mula7b_a1b", "model.mlp.num_experts=4")
    program(*tiny(*words), *ASKED, f"run={run}")
    parts = parts_of(run)
    assert parts["experts: products"] > 0
    assert parts["experts: routing"] > 0
    assert parts["communication"] == 0
    assert not any(part.startswith("experts") for part in reads_of(run))


@pytest.mark.long
def test_a_resumed_run_is_profiled_at_the_requested_step(home: Path, program: Program) -> None:
    run = home / "resumed"
    plain = program(*SHORT, f"run={run}")
    assert not (run / "profile").exists()
    assert "profile" not in plain.stdout
    assert "<h2>Profile</h2>" not in (run / "report.html").read_text()
    forget_the_end(run)
    over = program(f"resume={run}", "profiler.steps=1", "profiler.first_step=2")
    assert "profiler.first_step: step 2 has passed: the run resumes after step 4" in over.stderr
    assert not (run / "profile").exists()
    forget_the_end(run)
    gone_on = program(f"resume={run}", "profiler.steps=1", "profiler.first_step=6")
    assert "profile of rank 0, steps 6, by" in gone_on.stdout
