"""The GPU's tests start the program as those of its life do, on what GPU is there."""

import pytest

from components.distributed.devices import count_devices, device_type
from tests.life.conftest import home, program

__all__ = ["gpu", "home", "program", "two_gpus"]


@pytest.fixture
def gpu() -> str:
    """Name the kind of GPU, or tile of one, that torch sees."""
    kind = device_type("auto")
    if kind == "cpu":
        pytest.skip("needs a CUDA or XPU device")
    return kind


@pytest.fixture
def two_gpus(gpu: str) -> str:
    """Name it where there is one for each of two ranks."""
    if count_devices(gpu) < 2:
        pytest.skip("needs two devices")
    return gpu
