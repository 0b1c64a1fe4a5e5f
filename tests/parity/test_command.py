"""The command: one JSON object on standard output, progress on standard error."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.recipes import published_recipes
from command.actions.parity import layouts_of
from command.arguments import ROOT, read_point
from command.main import main
from command.outcome import Status
from components.parity.prover import to_single_process

RECIPES = published_recipes()
SMALL = ("recipe=bloom7b1", "model.num_layers=2", "budget.total_tokens=4_608")


@pytest.mark.long
def test_a_layout_of_a_recipe_is_within_tolerance(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    words = (*SMALL, "layouts=[{data: 3}]", "output=json")
    assert main(["action=parity", *words]) == 0
    out, err = capfd.readouterr()
    tree = json.loads(out)
    assert tree["holds"] is True
    assert tree["problems"] == []
    assert tree["loss"]["largest_relative_difference"] < 1e-14
    assert tree["float32"]["loss"]["largest_relative_difference"] < 1e-5
    assert err.splitlines() == ["one process, for reference", "3 ranks"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_diverging_recipe_fails_with_a_message(capsys):
    words = (*SMALL, "layouts=[{data: 2}]", "optimizer.lr=1e30", "output=json")
    assert main(["action=parity", *words]) == Status.DOES_NOT_HOLD
    out, err = capsys.readouterr()
    (problem,) = json.loads(out, parse_constant=pytest.fail)["problems"]
    assert "is not finite: the run diverged" in problem
    assert "Traceback" not in err


@pytest.mark.long
def test_deepspeed_is_within_tolerance_of_our_engine(capsys):
    # Learned positions do not return a tensor, which ZeRO 3 has to handle.
    layout = "layouts=[{data: 2, engine: deepspeed, zero: 3}]"
    words = ("recipe=gpt3b6", *SMALL[1:], layout, "output=json")
    assert main(["action=parity", *words]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree["precision"] == "float32"
    assert tree["problems"] == []
    assert tree["loss"]["largest_relative_difference"] < 1e-6
    assert tree["gradient"]["largest_relative_difference"] < 1e-5
    assert tree["weight"]["largest_relative_difference"] < 1e-3


MASKED = ("data.goldfish={one_in: 4, window_tokens: 5}", "data.loss_after_eod=false")
COMPLETEP = (
    "model.parametrization={_target_: components.model.parametrization.CompleteP, "
    "_partial_: true, base_dim: 32, base_layers: 1, depth_exponent: 0.5}",
    "model.initialization.residual=plain",
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "keys", "layouts"),
    [
        ("teuken7b", MASKED, "{context: 2}, {pipeline: 2, tensor: 2}"),
        ("bloom7b1", COMPLETEP, "{data: 2, zero: 3}, {pipeline: 2, tensor: 2}, {context: 2}"),
        ("mula7b_a1b", COMPLETEP, "{data: 2, expert: 2}, {expert: 2, zero: 1}"),
    ],
    ids=["masked targets", "rates by size", "rates by size, experts"],
)
def test_settings_of_the_mathematics_are_the_same_in_every_layout(capsys, name, keys, layouts):
    words = (f"recipe={name}", *SMALL[1:], *keys, f"layouts=[{layouts}]", "output=json")
    assert main(["action=parity", *words]) == 0
    for proof in json.loads(capsys.readouterr().out)["layouts"]:
        assert proof["loss"]["largest_relative_difference"] < 1e-14
        assert proof["gradient"]["largest_relative_difference"] < 1e-12
        assert proof["weight"]["largest_relative_difference"] < 1e-9


@pytest.mark.long
def test_a_terminated_command_stops_its_ranks_and_removes_its_files(tmp_path: Path) -> None:
    words = (*SMALL, "layouts=[{data: 2}]", "action=parity")
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "run.py"), *words],
        env=os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    while process.stderr.readline() != "2 ranks\n":
        assert process.poll() is None
    time.sleep(3)
    process.terminate()
    process.communicate(timeout=600)  # closes the pipe too
    assert process.returncode == Status.INTERRUPTED
    assert list(tmp_path.glob("parity-*")) == []
    for _ in range(10):  # a stopped rank may take a moment to exit
        if not (left := running(str(tmp_path))):
            break
        time.sleep(1)
    assert left == ""


def running(word: str) -> str:
    command = ["pgrep", "-af", word]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@pytest.mark.quick("teuken7b", "mula7b_a1b", "bloom560m", "gpt3b6", "olmo3_7b")
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_a_layout_of_eight_ranks_to_prove(name: str) -> None:
    (recipe,) = layouts_of(read_point([f"recipe={name}", "cluster.ranks=8"]))
    assert recipe.cluster.ranks == 8
    assert recipe.derived_numbers.steps >= 10
    assert to_single_process(recipe).cluster.ranks == 1
    samples = {plateau.samples for plateau in recipe.batch_ramp.batch_stages}
    group = recipe.parallelism.data * recipe.parallelism.expert
    assert all(
        count % (group * recipe.parallelism.microbatch_sequences) == 0 for count in samples
    )
