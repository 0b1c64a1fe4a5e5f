"""Intel's GPUs for Lightning, which knows CPUs and NVIDIA's GPUs and no others that we need."""

from typing import Any

import torch
from lightning.fabric.utilities.types import _DEVICE
from lightning.pytorch.accelerators import AcceleratorRegistry
from lightning.pytorch.accelerators.accelerator import Accelerator
from typing_extensions import override


class XPUAccelerator(Accelerator):
    """Give each rank the Intel GPU, or the tile of one, that has its number on the node."""

    @override
    def setup_device(self, device: torch.device) -> None:
        assert device.type == "xpu", device
        torch.xpu.set_device(device)

    @override
    def get_device_stats(self, device: _DEVICE) -> dict[str, Any]:
        """Return the allocator's figures, in bytes and counts."""
        return torch.xpu.memory_stats(device)

    @override
    def teardown(self) -> None:
        """Leave the allocator's cache: emptied after an all-gather of xccl, it leaks.

        https://github.com/argonne-lcf/AuroraBugTracking, bugs.md, 143.
        """

    @staticmethod
    @override
    def parse_devices(devices: int | list[int]) -> list[int]:
        """Number the first ``devices`` devices, or take the numbers given."""
        return list(range(devices)) if isinstance(devices, int) else devices

    @staticmethod
    @override
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        return [torch.device("xpu", number) for number in devices]

    @staticmethod
    @override
    def auto_device_count() -> int:
        return torch.xpu.device_count()

    @staticmethod
    @override
    def is_available() -> bool:
        return torch.xpu.is_available()

    @staticmethod
    @override
    def name() -> str:
        return "xpu"


def register_xpu() -> None:
    """Make ``Trainer(accelerator="xpu")`` mean ours; again does no harm."""
    if XPUAccelerator.name() not in AcceleratorRegistry:
        AcceleratorRegistry.register(
            XPUAccelerator.name(), XPUAccelerator, description="Intel GPUs"
        )
