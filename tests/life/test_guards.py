"""A run whose guard skips data has the same bits as a run whose recipe skips the data."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.checkpoint.metadata import RunProgress, read_marker
from components.parity.prover import draw_data
from components.run.folder import create_run_folder
from tests.life.conftest import TINY, Program, check_same_bits, tiny
from tests.life.together import train_together

STEPS, BATCH, SAVED_EVERY = 12, 8, 4
LAYOUTS = {
    "tensor x data": ("parallelism.tensor=2", "parallelism.data=2", "parallelism.pipeline=1"),
    "pipeline x data": ("parallelism.tensor=1", "parallelism.data=2", "parallelism.pipeline=2"),
}
NAN_STEP = 3
NAN_WINDOW = [(NAN_STEP - 1) * BATCH, BATCH]
# The guard skips the data of the spike and of the step before, after the data of the NaN.
# The last checkpoint before both is of step 8, so step 9 is computed twice.
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


class Runs(NamedTuple):
    """Run folders: a run with faults, and a run whose recipe skips their data."""

    guarded: Path
    skipped: Path


def create_run(home: Path, name: str, *words: str) -> Path:
    """Create a run on random tokens: on text, other steps than the injected one have spikes."""
    recipe = compose_recipe(
        read_point(
            tiny(
                f"budget.total_tokens={STEPS * BATCH * 64}",
                f"checkpoint.every_tokens={SAVED_EVERY * BATCH * 64}",
                f"evaluation.every_tokens={STEPS * BATCH * 64}",
                "parallelism.microbatch_sequences=2",
                *("cluster.ranks=4", *RULES, *words),
            )
        )
    )
    data = home / "drawn"
    if not data.exists():
        draw_data(recipe, data)
    folder = create_run_folder(recipe, home / name)
    folder.write_json("data.json", {"folder": str(data), "unigram": {"eu": 6.0}})
    return folder.path


@pytest.fixture(
    scope="module",
    params=["tensor x data", pytest.param("pipeline x data", marks=pytest.mark.long)],
)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    home, layout = tmp_path_factory.mktemp("guards"), LAYOUTS[request.param]
    skip = f"data.skip=[{SPIKE_WINDOW}, {NAN_WINDOW}]"
    runs = Runs(
        create_run(home, "guarded", *layout, FAULTS), create_run(home, "skipped", *layout, skip)
    )
    train_together(runs, 4)
    return runs


def guard_of(progress: RunProgress) -> dict[str, Any]:
    assert progress.guard is not None
    return dict(progress.guard)


def read_progress(run: Path) -> RunProgress:
    return read_marker(max((run / "checkpoints").glob("tokens-*"))).progress


def events(run: Path, kind: str = "") -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind or not kind]


@pytest.mark.long
def test_the_run_ends_as_if_the_bad_data_had_never_been_there(runs: Runs) -> None:
    check_same_bits(*runs)
    guarded, skipped = map(read_progress, runs)
    assert guarded.step == skipped.step == STEPS
    assert guard_of(guarded)["figures"] == guard_of(skipped)["figures"]
    assert {event["kind"] for event in events(runs.skipped)} == {"start", "checkpoint", "end"}


@pytest.mark.long
def test_a_step_that_is_no_number_names_the_rank_where_it_began(runs: Runs) -> None:
    (skip,) = events(runs.guarded, "skip")
    assert (skip["step"], skip["tokens"]) == (NAN_STEP - 1, (NAN_STEP - 1) * BATCH * 64)
    assert skip["evidence"]["window"] == NAN_WINDOW
    reports = skip["evidence"]["found_by"]
    assert 1 in [report["rank"] for report in reports]
    assert {report["node"] for report in reports} == {os.uname().nodename}
    assert {(report["stage"], report["in"]) for report in reports} == {(0, "forward")}


@pytest.mark.long
def test_a_run_that_goes_back_says_from_where_to_where_and_why(runs: Runs) -> None:
    (back,) = events(runs.guarded, "roll_back")
    assert back["step"] == CHECKPOINT_STEP
    assert back["evidence"]["bad_step"] == SPIKE_STEP
    assert back["evidence"]["from_step"] == SPIKE_STEP - 1
    assert back["evidence"]["window"] == SPIKE_WINDOW
    assert back["cause"].startswith("gradient norm ")
    assert back["cause"].endswith("robust deviations above the median of 8 steps")


@pytest.mark.long
def test_what_was_left_out_is_in_the_last_checkpoint(runs: Runs) -> None:
    progress = read_progress(runs.guarded)
    assert guard_of(progress)["skipped"] == [NAN_WINDOW, SPIKE_WINDOW]
    assert guard_of(progress)["faults"] == {
        "non_finite": [(NAN_STEP - 1) * BATCH * 64],
        "gradient_norm_spike": [(SPIKE_STEP - 1) * BATCH * 64],
    }


SHORT = tuple(word.replace("=12_288", "=4_096") for word in TINY)  # eight steps


def test_a_rule_broken_too_often_saves_stops_and_goes_on_with_a_larger_limit(home, program):
    run = home / "stopped"
    faults = ", ".join(f"{{fault: nan, rank: 0, step: {step}}}" for step in (3, 5))
    words = (*SHORT, f"guard.inject=[{faults}]", f"run={run}")
    done = program(*words, "guard.non_finite.most=1", status=2)
    assert "guard.non_finite.most: loss and gradient norm not finite" in done.stderr
    (stop,) = events(run, "stop")
    assert stop["evidence"]["bad_step"] == 5
    assert read_progress(run).step == 4
    program(f"resume={run}", "guard.non_finite.most=4")
    (changed,) = events(run, "changed_setting")
    assert changed["evidence"] == {"guard.non_finite.most": [1, 4]}
    assert [event["step"] for event in events(run, "skip")] == [2]
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
    assert [event["kind"] for event in events(run)][-1] == "stop"
