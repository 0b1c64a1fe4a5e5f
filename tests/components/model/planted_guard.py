"""Simulate a device that does not exist with the guard of ``meta``, which does nothing.

A guard selects the current device. A CPU build of torch has no other guards and cannot even
fill a fake tensor on another device.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

# c10::DeviceType; stable, since files of weights contain it
DEVICE_TYPES = {"cuda": 1, "xpu": 12}
META = 14


@contextmanager
def lend_guard(kind: str) -> Iterator[None]:
    """Register the guard, unless this build of torch has one."""
    built = {"cuda": torch.backends.cuda.is_built, "xpu": torch.xpu._is_compiled}[kind]
    if built():
        yield
        return
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * (META + 1)).in_dll(
        library, "_ZN3c104impl26device_guard_impl_registryE"
    )
    guards[DEVICE_TYPES[kind]] = guards[META]
    yield
    guards[DEVICE_TYPES[kind]] = None
