"""Schemes of precision: a run that is killed in the middle ends in the same bits."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.life.conftest import TINY, Program, act, command, entries, environment
from tests.life.test_layouts_life import children

pytestmark = pytest.mark.long

BFLOAT16 = ("precision.compute=bfloat16", "precision.weights=bfloat16")
SCHEMES = {
    # Weights in float32 are killed in test_train.py.
    "masters, sums divided": (*BFLOAT16, "parallelism.zero=2"),
    "masters, all divided": ("precision.compute=bfloat16", "parallelism.zero=3"),
    "masters, sums in bfloat16": (
        *BFLOAT16,
        "precision.accumulate=bfloat16",
        "precision.reduce=bfloat16",
    ),
    "no masters": (*BFLOAT16, "precision.master=bfloat16", "precision.accumulate=bfloat16"),
    "float16": ("precision=fp16", "precision.loss_scale.initial=65_536"),
}


def numbers(run: Path) -> dict[str, Any]:
    """Read all that the last checkpoint holds: weights, masters and moments of each rank."""
    newest = max((run / "checkpoints").glob("tokens-*"))
    return {
        f"{file.name} {name}": tensor
        for file in newest.glob("*.safetensors")
        for name, tensor in load_file(file).items()
    }


def kill_after_a_checkpoint(home: Path, run: Path, words: tuple[str, ...]) -> None:
    process = subprocess.Popen(
        command(*words, f"run={run}"),
        cwd=home,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not entries(run, "checkpoint"):
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(children(process.pid)[0], signal.SIGKILL)  # the agent leads its ranks' group
    process.kill()
    process.wait()
    assert not (run / "results.json").exists()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_killed_in_the_middle_a_run_of_each_scheme_ends_in_the_same_bits(
    home: Path, program: Program, scheme: str
) -> None:
    words = (*TINY, "parallelism.data=2", "cluster.ranks=2", *SCHEMES[scheme])
    name = scheme.replace(" ", "-").replace(",", "")
    whole, run = home / f"whole-{name}", home / f"killed-{name}"
    assert act(home, *words, f"run={whole}") == 0
    kill_after_a_checkpoint(home, run, words)
    program(f"resume={run}")
    (resumed,) = entries(run, "resume")
    assert 0 < resumed["step"] < entries(whole, "step")[-1]["step"]
    expected, found = numbers(whole), numbers(run)
    moments = [key for key in expected if "exp_avg" in key]
    assert moments
    assert expected.keys() == found.keys()
    assert [key for key in expected if not expected[key].equal(found[key])] == []
