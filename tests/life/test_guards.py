"""A run whose guard left data out is, bit by bit, the run that was told to from the start."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from components.checkpoint.metadata import RunProgress, read_marker
from components.run.history import read_lines
from tests.life.conftest import Program, check_same_bits, entries, tiny
from tests.life.together import begin, train_together

STEPS, BATCH, SAVED_EVERY = 12, 8, 4
WORDS = tiny(
    f"budget.total_tokens={STEPS * BATCH * 64}",
    f"checkpoint.every_tokens={SAVED_EVERY * BATCH * 64}",
    f"evaluation.every_tokens={STEPS * BATCH * 64}",
    "evaluation.max_windows_per_source=4",
    "parallelism.microbatch_sequences=2",
    *("cluster.ranks=4", "parallelism.data=2"),
)
LAYOUTS = {"tensor x data": "parallelism.tensor=2", "pipeline x data": "parallelism.pipeline=2"}
NAN_STEP = 3
NAN_WINDOW = [(NAN_STEP - 1) * BATCH, BATCH]
# The spike's data and that of the step before are left out, after what the NaN's step left out.
# The checkpoint before them is of step 8, so step 9 is taken twice.
SPIKE_STEP, SKIP_STEPS, CHECKPOINT_STEP = 11, 2, 8
SPIKE_WINDOW = [(SPIKE_STEP - SKIP_STEPS + 1) * BATCH, SKIP_STEPS * BATCH]
RULES = (
    "guard.gradient_norm_spike={action: roll_back, most: 3, within_tokens: 1_000_000, "
    "window_steps: 8, deviations: 7.0}",
    f"guard.roll_back.skip_steps={SKIP_STEPS}",
)
FAULTS = (
    f"guard.inject=[{{fault: nan, rank: 1, step: {NAN_STEP}}}, "
    f"{{fault: spike, rank: 3, step: {SPIKE_STEP}}}]"
)


class Lives(NamedTuple):
    """Run folders: one that met the faults, and one that was told what to leave out."""

    guarded: Path
    told: Path


@pytest.fixture(scope="module")
def trained(home: Path) -> dict[str, Lives]:
    skip = f"data.skip=[{SPIKE_WINDOW}, {NAN_WINDOW}]"
    made = {
        name: Lives(
            begin(home, f"guarded-{name}", *WORDS, layout, *RULES, FAULTS),
            begin(home, f"told-{name}", *WORDS, layout, *RULES, skip),
        )
        for name, layout in LAYOUTS.items()
    }
    train_together([run for lives in made.values() for run in lives], 4)
    return made


@pytest.fixture(params=LAYOUTS)
def lives(request: pytest.FixtureRequest, trained: dict[str, Lives]) -> Lives:
    return trained[request.param]


def guard_of(progress: RunProgress) -> dict[str, Any]:
    assert progress.guard is not None
    return dict(progress.guard)


def marker_of(run: Path) -> RunProgress:
    return read_marker(max((run / "checkpoints").glob("tokens-*"))).progress


@pytest.mark.long
def test_the_run_ends_as_if_the_bad_data_had_never_been_there(lives: Lives) -> None:
    check_same_bits(lives.guarded, lives.told)
    my_marker, their_marker = marker_of(lives.guarded), marker_of(lives.told)
    assert my_marker.step == their_marker.step == STEPS
    assert guard_of(my_marker)["figures"] == guard_of(their_marker)["figures"]
    kinds = {event["kind"] for event in read_lines(lives.told / "events.jsonl")}
    assert kinds == {"start", "checkpoint", "end"}


@pytest.mark.long
def test_a_step_that_is_no_number_names_the_rank_where_it_began(lives: Lives) -> None:
    (skip,) = entries(lives.guarded, "skip")
    assert (skip["step"], skip["tokens"]) == (NAN_STEP - 1, (NAN_STEP - 1) * BATCH * 64)
    assert skip["evidence"]["window"] == NAN_WINDOW
    found = skip["evidence"]["found_by"]
    assert 1 in [one["rank"] for one in found]
    assert {one["node"] for one in found} == {os.uname().nodename}
    assert {(one["stage"], one["in"]) for one in found} == {(0, "forward")}


@pytest.mark.long
def test_a_run_that_goes_back_says_from_where_to_where_and_why(lives: Lives) -> None:
    (back,) = entries(lives.guarded, "roll_back")
    assert back["step"] == CHECKPOINT_STEP
    assert back["evidence"]["bad_step"] == SPIKE_STEP
    assert back["evidence"]["from_step"] == SPIKE_STEP - 1
    assert back["evidence"]["window"] == SPIKE_WINDOW
    assert back["cause"].startswith("gradient norm ")
    assert back["cause"].endswith("robust deviations above the median of 8 steps")


@pytest.mark.long
def test_what_was_left_out_is_in_the_last_checkpoint(lives: Lives) -> None:
    marker = marker_of(lives.guarded)
    assert guard_of(marker)["skipped"] == [NAN_WINDOW, SPIKE_WINDOW]
    assert guard_of(marker)["faults"] == {
        "non_finite": [(NAN_STEP - 1) * BATCH * 64],
        "gradient_norm_spike": [(SPIKE_STEP - 1) * BATCH * 64],
    }


SHORT = tiny("budget.total_tokens=4_096")  # eight steps


def test_a_rule_broken_too_often_saves_stops_and_goes_on_with_a_larger_limit(
    home: Path, program: Program
) -> None:
    run = home / "stopped"
    faults = ", ".join(f"{{fault: nan, rank: 0, step: {step}}}" for step in (3, 5))
    words = (*SHORT, f"guard.inject=[{faults}]", f"run={run}")
    done = program(*words, "guard.non_finite.most=1", status=2)
    assert "guard.non_finite.most: loss and gradient norm not finite" in done.stderr
    (stop,) = entries(run, "stop")
    assert stop["evidence"]["bad_step"] == 5
    assert marker_of(run).step == 4
    program(f"resume={run}", "guard.non_finite.most=4")
    (changed,) = entries(run, "changed_setting")
    assert changed["evidence"] == {"guard.non_finite.most": [1, 4]}
    assert [event["step"] for event in entries(run, "skip")] == [2]
    page = (run / "report.html").read_text()
    assert "guard.non_finite.most" in page
    assert "goodput" in page


def test_without_a_checkpoint_to_go_back_to_the_run_stops(home: Path, program: Program) -> None:
    words = (
        "guard.inject=[{fault: nan, rank: 0, step: 3}]",
        "guard.non_finite.action=roll_back",
    )
    run = home / "nowhere"
    done = program(*SHORT, *words, f"run={run}", status=2)
    assert "and no checkpoint at or before step 2 exists" in done.stderr
    assert read_lines(run / "events.jsonl")[-1]["kind"] == "stop"
