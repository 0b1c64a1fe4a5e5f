"""Training on one GPU or two finds the losses of the CPU, as closely as bfloat16 says them."""

import json
from pathlib import Path

import pytest

from tests.life.conftest import TINY, Program

# Losses near 6 from 8-bit mantissas: a few parts in a thousand.
BFLOAT16_TOLERANCE = 1e-2

pytestmark = pytest.mark.gpu


def losses(run: Path) -> list[float]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [entry["loss"] for entry in map(json.loads, lines) if entry["kind"] == "step"]


def train(program: Program, run: Path, *words: str) -> list[float]:
    program(*words, "precision.compute=bfloat16", f"run={run}")
    return losses(run)


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_a_gpu_in_bfloat16_finds_the_losses_of_the_cpu(home, program, gpu, zero):
    found = {
        device: train(
            program,
            home / f"{device}-{zero}",
            *TINY,
            f"parallelism.zero={zero}",
            f"cluster.device={device}",
        )
        for device in ("cpu", gpu)
    }
    assert found[gpu] == pytest.approx(found["cpu"], rel=BFLOAT16_TOLERANCE)


def test_a_run_says_on_which_gpu_it_was_and_how_full_that_became(home, program, gpu):
    run = home / "memory"
    train(program, run, *TINY, f"cluster.device={gpu}")
    results = json.loads((run / "results.json").read_text())
    weights_bytes = 4 * json.loads((run / "derived.json").read_text())["parameters"]["total"]
    assert results["device"] == f"{gpu}:0"
    # float32 weights, gradients and two moments are there at the same time, on the device
    assert 4 * weights_bytes < results["peak_memory_bytes"] < 2**30


@pytest.mark.parametrize(
    "layout",
    [
        ("parallelism.data=2", "parallelism.zero=3"),
        ("parallelism.tensor=2",),
        ("parallelism.pipeline=2",),
    ],
    ids=["data", "tensor", "pipeline"],
)
def test_two_gpus_find_the_losses_of_the_cpu(home, program, two_gpus, layout):
    name = layout[0].removeprefix("parallelism.")
    alone = train(program, home / f"alone-{name}", *TINY, "cluster.device=cpu")
    words = (*layout, "cluster.ranks=2", f"cluster.device={two_gpus}")
    together = train(program, home / f"together-{name}", *TINY, *words)
    assert together == pytest.approx(alone, rel=BFLOAT16_TOLERANCE)
