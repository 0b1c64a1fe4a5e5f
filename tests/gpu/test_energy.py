"""A GPU's energy counter agrees with its power, and a run on it is measured."""

import json
import time
from itertools import pairwise
from statistics import fmean

import pytest
import torch

from components.energy.counters import Meter
from components.energy.devices import NvidiaCounter
from tests.life.conftest import TINY

SECONDS = 10.0
SIZE, PRODUCTS = 8_192, 32  # a twentieth of a second at 700 TFLOP/s
# Some GPUs' power is a mean over the second before, and both have errors of their own.
POWER_TOLERANCE = 0.2

pytestmark = pytest.mark.gpu


@pytest.fixture
def cuda(gpu: str) -> torch.device:
    if gpu != "cuda":
        pytest.skip("NVML counts NVIDIA's GPUs alone")
    return torch.device("cuda", 0)


def powers_while_computing(device: torch.device, seconds: float) -> list[tuple[float, float]]:
    """Multiply for so long, and note when NVML told how many watts, always amid products."""
    matrix = torch.randn(SIZE, SIZE, device=device, dtype=torch.bfloat16)
    product = torch.empty_like(matrix)
    began, noted = time.monotonic(), []
    while time.monotonic() < began + seconds:
        for _ in range(PRODUCTS):
            torch.mm(matrix, matrix, out=product)
        noted.append((time.monotonic(), torch.cuda.power_draw(device) / 1_000))
        torch.cuda.synchronize(device)
    return noted


def test_the_counter_agrees_with_power_over_time(cuda: torch.device) -> None:
    uuid = str(torch.cuda.get_device_properties(cuda).uuid)
    powers_while_computing(cuda, 3.0)  # clocks and the mean of the second before settle
    meter = Meter(counters=[NvidiaCounter(uuid=uuid)], units=1, now=time.monotonic())
    noted = powers_while_computing(cuda, SECONDS)
    counted = meter.measure_energy(time.monotonic())
    joules = sum(
        fmean((before, after)) * (later - earlier)
        for (earlier, before), (later, after) in pairwise(noted)
    )
    assert counted.is_whole
    assert counted.joules == pytest.approx(joules, rel=POWER_TOLERANCE)


def test_a_run_on_a_gpu_knows_its_energy(home, program, cuda):
    run = home / "energy"
    program(*TINY, "cluster.device=cuda", f"run={run}")
    energy = json.loads((run / "results.json").read_text())["energy"]
    assert energy["devices"]["source"] == "NVML"
    assert energy["devices"]["counted_fraction"] == pytest.approx(1)
    # From a GPU that idles to one that draws all it may.
    assert 10 < energy["devices"]["watts"] < 1_500
    tokens = json.loads((run / "results.json").read_text())["tokens"]
    assert energy["joules_per_token"] == pytest.approx(energy["devices"]["joules"] / tokens)
