"""Attention backends: the recipe's order of kernels, and the first that supports a case.

Names are as in ``torch.nn.attention.SDPBackend``; ``flex`` is ``flex_attention``. Sources of
the table, in torch: ``transformers/cuda/sdp_utils.cpp`` (flash, cuDNN, efficient) and
``native/mkldnn/xpu/Attention.cpp`` (oneDNN: ``overrideable``) in ``aten/src/ATen``, and
``torch/nn/attention/flex_attention.py``.

    flash         CUDA, half precision; groups, dropout, context ranks
    cudnn         CUDA from Hopper on, half precision; groups, dropout
    efficient     CUDA; dropout, context ranks
    overrideable  Intel GPUs; no groups, no dropout
    flex          both; all of the above, and documents, ALiBi, windows and sinks
    math          both; keeps the whole matrix of scores

Only ``flex`` needs no dense mask for documents, slopes or windows, and returns the log-sum-exp
that sinks need. Dense masks are for CPUs only. On CPUs the order has no effect: torch chooses
``flash`` for CPUs or ``math``.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from components.errors import RecipeError

Backend = Literal["flash", "cudnn", "efficient", "overrideable", "flex", "math"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
ACCELERATORS = ("cuda", "rocm", "xpu")
KEY = "model.attention.backends"
_HALF = ("bfloat16", "float16")


class AttentionCase(NamedTuple):
    """Attention case to support: ``grouped`` means that query heads share key heads.

    ``structured`` masks have documents, slopes or windows shorter than the sequence. Other
    masks of context ranks are ``offset``: causal, with queries that start after the first key.
    """

    device: str
    dtype: str
    head_dim: int
    grouped: bool
    dropout: bool
    mask: Literal["causal", "offset", "structured"]
    sinks: bool = False

    def __str__(self) -> str:
        of = {
            "causal": "",
            "offset": " of context ranks",
            "structured": " with documents, slopes or windows",
        }
        parts = [self.dtype, "attention" + of[self.mask]]
        parts += ["in groups"] * self.grouped + ["with dropout"] * self.dropout
        parts += ["with sinks"] * self.sinks
        return f"{' '.join(parts)}, heads of {self.head_dim}, on {self.device}"


def select_backends(order: Sequence[Backend], case: AttentionCase) -> tuple[Backend, ...]:
    """Return the backends that support a case, in order; the first is used, on a CPU none.

    Raises RecipeError if no backend of the order supports the case.
    """
    if case.device not in ACCELERATORS:
        return ()
    if supported := tuple(backend for backend in order if _serves(backend, case)):
        return supported
    others = [backend for backend in BACKENDS if _serves(backend, case)]
    remedy = f"add {' or '.join(others)}" if others else "use precision.compute=bfloat16"
    raise RecipeError(KEY, f"[{', '.join(order)}] has no kernel for {case}", remedy)


def check_order(
    order: Sequence[object], key: str = KEY, backends: Sequence[str] = BACKENDS
) -> None:
    """Raise a RecipeError if an order is empty, or has an unknown or a repeated backend."""
    known = ", ".join(backends)
    if not order:
        raise RecipeError(key, "the list is empty", f"list some of {known}, best first")
    for index, backend in enumerate(order):
        if backend not in backends:
            raise RecipeError(f"{key}[{index}]", f"unknown {backend!r}", f"use some of {known}")
        if backend in order[:index]:
            raise RecipeError(key, f"{backend} is listed twice", "list each backend once")


def _serves(backend: Backend, case: AttentionCase) -> bool:
    # Torch's own kernels are for NVIDIA and AMD, cuDNN is for NVIDIA only.
    cuda, half = case.device in {"cuda", "rocm"}, case.dtype in _HALF
    if backend == "flex":
        return case.dtype != "float64"
    if case.mask == "structured" or case.sinks:
        return False
    if backend == "flash":
        return cuda and half and case.head_dim <= 256
    if backend == "efficient":
        return cuda and case.dtype != "float64" and not case.grouped
    if case.mask == "offset":
        return False
    if backend == "cudnn":
        fits = case.head_dim <= 128 and case.head_dim % 8 == 0
        return case.device == "cuda" and half and fits
    if backend == "overrideable":
        plain = not (case.grouped or case.dropout)
        return not cuda and plain and case.dtype != "float64"
    return True
