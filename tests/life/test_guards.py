"""A run whose guard left data out is, bit by bit, the run that was told to from the start."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from safetensors.torch import load_file
from torch import Tensor

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.checkpoint.metadata import RunProgress, read_marker
from components.parity.prover import draw_data
from components.run.folder import create_run_folder
from tests.life.conftest import ROOT, TINY, Program, environment

STEPS, BATCH, SAVED_EVERY = 12, 8, 4
LAYOUTS = {
    "tensor x data": ("parallelism.tensor=2", "parallelism.data=2", "parallelism.pipeline=1"),
    "pipeline x data": ("parallelism.tensor=1", "parallelism.data=2", "parallelism.pipeline=2"),
}
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


def make_folder(path: Path, *words: str) -> Path:
    given = {word.partition("=")[0] for word in words}
    tiny = [word for word in TINY if word.partition("=")[0] not in given]
    own = {
        "budget.total_tokens": STEPS * BATCH * 64,
        "checkpoint.every_tokens": SAVED_EVERY * BATCH * 64,
        "evaluation.every_tokens": STEPS * BATCH * 64,
        "parallelism.microbatch_sequences": 2,
    }
    tiny = [word for word in tiny if word.partition("=")[0] not in own]
    recipe = compose_recipe(
        read_point([*tiny, *(f"{key}={value}" for key, value in own.items()), *words])
    )
    data = path.with_name("drawn")
    if not data.exists():
        draw_data(recipe, data)
    folder = create_run_folder(recipe, path)
    folder.write_json("data.json", {"folder": str(data), "unigram": {"eu": 6.0}})
    return path


def train(folders: list[Path], ranks: int) -> None:
    program = ["-m", "tests.life.guarded_ranks", *map(str, folders)]
    logs = folders[0].with_name("ranks")
    done = subprocess.run(
        [sys.executable, "-m", "components.train.agent", str(logs), str(ranks), "0", *program],
        env=environment() | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (logs / "first_failure.json").read_text() + done.stderr[-2000:]


@pytest.fixture(
    scope="module",
    params=["tensor x data", pytest.param("pipeline x data", marks=pytest.mark.long)],
)
def lives(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lives:
    home = tmp_path_factory.mktemp("guards")
    layout = ("cluster.ranks=4", *LAYOUTS[request.param])
    skip = f"data.skip=[{SPIKE_WINDOW}, {NAN_WINDOW}]"
    made = Lives(
        make_folder(home / "guarded", *layout, *RULES, FAULTS),
        make_folder(home / "told", *layout, *RULES, skip),
    )
    train(list(made), 4)
    return made


def guard_of(progress: RunProgress) -> dict[str, Any]:
    assert progress.guard is not None
    return dict(progress.guard)


def saved(run: Path) -> tuple[dict[str, Tensor], RunProgress]:
    newest = max((run / "checkpoints").glob("tokens-*"))
    tensors = {
        name: tensor
        for file in newest.glob("*.safetensors")
        for name, tensor in load_file(file).items()
    }
    return tensors, read_marker(newest).progress


def events(run: Path, kind: str = "") -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind or not kind]


@pytest.mark.long
def test_the_run_ends_as_if_the_bad_data_had_never_been_there(lives: Lives) -> None:
    (mine, my_marker), (theirs, their_marker) = saved(lives.guarded), saved(lives.told)
    assert mine.keys() == theirs.keys()
    assert [name for name in mine if not mine[name].equal(theirs[name])] == []
    assert my_marker.step == their_marker.step == STEPS
    assert guard_of(my_marker)["figures"] == guard_of(their_marker)["figures"]
    assert {event["kind"] for event in events(lives.told)} == {"start", "checkpoint", "end"}


@pytest.mark.long
def test_a_step_that_is_no_number_names_the_rank_where_it_began(lives: Lives) -> None:
    (skip,) = events(lives.guarded, "skip")
    assert (skip["step"], skip["tokens"]) == (NAN_STEP - 1, (NAN_STEP - 1) * BATCH * 64)
    assert skip["evidence"]["window"] == NAN_WINDOW
    found = skip["evidence"]["found_by"]
    assert 1 in [one["rank"] for one in found]
    assert {one["node"] for one in found} == {os.uname().nodename}
    assert {(one["stage"], one["in"]) for one in found} == {(0, "forward")}


@pytest.mark.long
def test_a_run_that_goes_back_says_from_where_to_where_and_why(lives: Lives) -> None:
    (back,) = events(lives.guarded, "roll_back")
    assert back["step"] == CHECKPOINT_STEP
    assert back["evidence"]["bad_step"] == SPIKE_STEP
    assert back["evidence"]["from_step"] == SPIKE_STEP - 1
    assert back["evidence"]["window"] == SPIKE_WINDOW
    assert back["cause"].startswith("gradient norm ")
    assert back["cause"].endswith("robust deviations above the median of 8 steps")


@pytest.mark.long
def test_what_was_left_out_is_in_the_last_checkpoint(lives: Lives) -> None:
    _, marker = saved(lives.guarded)
    assert guard_of(marker)["skipped"] == [NAN_WINDOW, SPIKE_WINDOW]
    assert guard_of(marker)["faults"] == {
        "non_finite": [(NAN_STEP - 1) * BATCH * 64],
        "gradient_norm_spike": [(SPIKE_STEP - 1) * BATCH * 64],
    }


SHORT = tuple(word.replace("=12_288", "=4_096") for word in TINY)  # eight steps


def test_a_rule_broken_too_often_saves_stops_and_goes_on_with_a_larger_limit(
    home: Path, program: Program
) -> None:
    run = home / "stopped"
    faults = ", ".join(f"{{fault: nan, rank: 0, step: {step}}}" for step in (3, 5))
    words = (*SHORT, f"guard.inject=[{faults}]", f"run={run}")
    done = program(*words, "guard.non_finite.most=1", status=2)
    assert "guard.non_finite.most: loss and gradient norm not finite" in done.stderr
    (stop,) = events(run, "stop")
    assert stop["evidence"]["bad_step"] == 5
    _, marker = saved(run)
    assert marker.step == 4
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
