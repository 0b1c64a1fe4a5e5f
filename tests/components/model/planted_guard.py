"""A device that is not there, lent the guard of ``meta``, which does nothing.

A guard makes a device the current one. A torch for CPUs has none for others, and so cannot even
fill a fake tensor on one.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

# c10::DeviceType, which torch's files of weights rely on
DEVICE_TYPES = {"cuda": 1, "xpu": 12}
META = 14


@contextmanager
def lend_guard(kind: str) -> Iterator[None]:
    """Plant the guard in the registry that torch looks into, unless it was built with one."""
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
