"""The energy of an NVIDIA GPU: NVML's counter, on Volta and newer.

nvmlDeviceGetTotalEnergyConsumption, millijoules since the driver was loaded:
https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html. Every instance of a GPU
that MIG divides is told the energy of all of it, so that none knows its own:
https://github.com/NVIDIA/dcgm-exporter/issues/317.
"""

import math

from components.energy.counters import NoCounterError

try:
    import pynvml
except ImportError:  # a site's own packages may lack it
    pynvml = None

MILLI = 1e-3


class NvidiaCounter:
    """Ask NVML for the energy of the GPU that has this ``uuid``, as CUDA tells it.

    Raises:
        NoCounterError: NVML or its binding is absent, or does not count this GPU alone.
    """

    range_joules = math.inf
    longest_seconds = math.inf

    def __init__(self, *, uuid: str) -> None:
        if pynvml is None:
            raise NoCounterError("the package nvidia-ml-py is not installed")
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            divided = _is_divided(self._handle)
        except pynvml.NVMLError as error:
            raise NoCounterError(f"NVML: {error}") from None
        if divided:
            raise NoCounterError("MIG divides this GPU, and NVML counts all of it together")
        self.read()

    def read(self) -> float:
        """Return the joules that are on the counter.

        Raises:
            NoCounterError: NVML does not tell.
        """
        try:
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) * MILLI
        except pynvml.NVMLError as error:
            raise NoCounterError(f"NVML: {error}") from None


def _is_divided(handle: object) -> bool:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    # GPUs that cannot be divided say so, and drivers of before there were any.
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return False
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)
