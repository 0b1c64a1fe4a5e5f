"""The strategy on one GPU finds the losses of the CPU, as closely as bfloat16 says them."""

import json
from pathlib import Path

import pytest
import torch

from tests.life.conftest import TINY, Program

# Losses near 6 from 8-bit mantissas: a few parts in a thousand.
BFLOAT16_TOLERANCE = 1e-2

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def losses(run: Path) -> list[float]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [entry["loss"] for entry in map(json.loads, lines) if entry["kind"] == "step"]


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_a_gpu_in_bfloat16_finds_the_losses_of_the_cpu(
    home: Path, program: Program, zero: int
) -> None:
    runs = {device: home / f"{device}-{zero}" for device in ("cpu", "cuda")}
    for device, run in runs.items():
        layout = (f"parallelism.zero={zero}", "precision.compute=bfloat16")
        program(*TINY, *layout, f"cluster.device={device}", f"run={run}")
    assert losses(runs["cuda"]) == pytest.approx(losses(runs["cpu"]), rel=BFLOAT16_TOLERANCE)
