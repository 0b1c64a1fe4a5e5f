"""Scan backends: kernels of linear mixers' scans, and the first that supports a case.

    fla        flash-linear-attention: GPUs, half precision, keys of at most 256 channels
    mamba_ssm  Mamba-2 on NVIDIA and AMD GPUs, half precision
    torch      chunked scans in plain torch, for all devices and precisions

On CPUs the order has no effect: torch scans. In float32, Triton's products are in TF32, so the
libraries are for half precision only.
"""

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple, get_args

from components.attention_backends import ACCELERATORS
from components.errors import RecipeError

ScanBackend = Literal["fla", "mamba_ssm", "torch"]
SCAN_BACKENDS: tuple[ScanBackend, ...] = get_args(ScanBackend)
PACKAGES: dict[ScanBackend, str] = {"fla": "flash-linear-attention", "mamba_ssm": "mamba-ssm"}


class ScanCase(NamedTuple):
    """Scan case to support: the class of the mixer, and what its kernels depend on."""

    mixer: str
    device: str
    dtype: str
    key_dim: int

    def __str__(self) -> str:
        return f"{self.dtype} {self.mixer}, keys of {self.key_dim}, on {self.device}"


def select_scan(
    key: str,
    order: Sequence[ScanBackend],
    case: ScanCase,
    missing: Collection[ScanBackend] = (),
) -> ScanBackend:
    """Return the first backend that supports a case; on a CPU, torch.

    ``missing`` libraries are skipped. Raises RecipeError for ``key`` if nothing is left.
    """
    if case.device not in ACCELERATORS:
        return "torch"
    supported = [backend for backend in order if _serves(backend, case)]
    for backend in supported:
        if backend not in missing:
            return backend
    listed = f"[{', '.join(order)}]"
    if not supported:
        raise RecipeError(key, f"{listed} has no kernel for {case}", "add torch")
    remedy = f"install {' or '.join(PACKAGES[one] for one in supported)}, or add torch"
    raise RecipeError(key, f"{listed}: not installed here: {', '.join(supported)}", remedy)


def _serves(backend: ScanBackend, case: ScanCase) -> bool:
    if backend == "torch":
        return True
    if case.dtype not in {"bfloat16", "float16"}:
        return False
    if backend == "fla":
        return case.key_dim <= 256
    return case.mixer == "Mamba2" and case.device != "xpu"
