"""A simulated GPU driver for torch: a library in the place of NVML, one for each node.

A CPU build of torch lacks CUDA's runtime. `RUNTIME` simulates it in torch: questions about a
device go to the node's library, and the processor does the device's computations. Torch's own
device count and all of this repository's code stay unchanged.
"""

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("driver.c")
LIBRARY = "libnvidia-ml.so.1"
RUNTIME = """
import contextlib
import ctypes
import torch
from torch.overrides import TorchFunctionMode

MOST_ROWS = 64  # of a product: a processor would take minutes for one of a GPU's size

class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]

def ask(index):
    driver, handle, memory = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), Memory()
    if status := driver.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
        raise torch.AcceleratorError(f"CUDA error: unknown error\\nNVML says {status}")
    driver.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    return memory.free, memory.total

class Runtime:
    cudaMemGetInfo = staticmethod(ask)

class OnTheProcessor(TorchFunctionMode):
    def __torch_function__(self, function, types, words=(), named=None):
        named = dict(named or {})
        device = named.get("device")
        if device is not None and torch.device(device).type == "cuda":
            ask(torch.device(device).index)
            named["device"] = "cpu"
            words = tuple(min(one, MOST_ROWS) if type(one) is int else one for one in words)
        return function(*words, **named)

def answering():
    found = 0
    with contextlib.suppress(torch.AcceleratorError):
        while ask(found):
            found += 1
    return found

# CUDA's own count: once it has started, and where NVML gives none.
torch._C._cuda_getDeviceCount = answering
torch._C._cuda_init = torch._C._cuda_synchronize = lambda: None
torch.cuda._cudart = Runtime
torch.cuda._queued_calls.clear()
torch.cuda._exchange_device = torch.cuda._maybe_exchange_device = lambda index: index
OnTheProcessor().__enter__()
"""
# The simulated device cannot train, so the recipe of the ranks has device: cpu.
ON_THE_PROCESSOR = """sed -i 's/"device": "cuda"/"device": "cpu"/' "$3/recipe.json\""""


def build_driver(folder: Path, *, devices: int, lost: int = -1) -> Path:
    """Compile the library of a node that has ``devices`` GPUs; with -1 it has no driver."""
    compiler = shutil.which("cc")
    assert compiler is not None, "apt-get install gcc"
    folder.mkdir()
    figures = (f"-DDEVICES={devices}", f"-DLOST={lost}")
    library = folder / LIBRARY
    words = (compiler, "-shared", "-fPIC", "-Wall", "-Werror", *figures, "-o", str(library))
    subprocess.run([*words, str(SOURCE)], check=True)
    return library
