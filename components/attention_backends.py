"""Attention backends: the order of kernels that a recipe names, and the first one that serves.

Names are those of ``torch.nn.attention.SDPBackend``; ``flex`` is torch's ``flex_attention``.
What each can do is in torch's source: ``transformers/cuda/sdp_utils.cpp`` (flash, cuDNN,
efficient), ``native/mkldnn/xpu/Attention.cpp`` (oneDNN, which is ``overrideable``), both below
``aten/src/ATen``, and ``torch/nn/attention/flex_attention.py``.

    flash         CUDA, half precision; groups, dropout, context ranks
    cudnn         CUDA from Hopper on, half precision; groups, dropout
    efficient     CUDA; dropout, context ranks
    overrideable  Intel GPUs; no groups, no dropout
    flex          both; all of it, documents and ALiBi too
    math          both; keeps the whole matrix of scores

No kernel but ``flex`` knows documents or slopes without a dense mask, which only a CPU makes.
There the order has no say: torch's own choice, ``flash`` for CPUs or ``math``, is taken.
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
    """What attention computes on: ``grouped`` where query heads share those of keys.

    ``structured`` masks have documents or slopes; those of context ranks, else causal, are
    ``offset``, as queries begin later than keys.
    """

    device: str
    dtype: str
    head_dim: int
    grouped: bool
    dropout: bool
    mask: Literal["causal", "offset", "structured"]

    def __str__(self) -> str:
        of = {
            "causal": "",
            "offset": " of context ranks",
            "structured": " with documents or slopes",
        }
        parts = [self.dtype, "attention" + of[self.mask]]
        parts += ["in groups"] * self.grouped + ["with dropout"] * self.dropout
        return f"{' '.join(parts)}, heads of {self.head_dim}, on {self.device}"


def serving(order: Sequence[Backend], case: AttentionCase) -> tuple[Backend, ...]:
    """Keep the backends of an order that serve, the first of which is taken.

    On a CPU it is empty: torch chooses.

    Raises:
        RecipeError: none of them does.
    """
    if case.device not in ACCELERATORS:
        return ()
    if found := tuple(backend for backend in order if _serves(backend, case)):
        return found
    able = [backend for backend in BACKENDS if _serves(backend, case)]
    remedy = f"add {' or '.join(able)}" if able else "use precision.compute=bfloat16"
    raise RecipeError(KEY, f"[{', '.join(order)}] has no kernel for {case}", remedy)


def check_order(order: Sequence[object]) -> None:
    """Raise a RecipeError for an order that is empty, or names what is none or one twice."""
    known = ", ".join(BACKENDS)
    if not order:
        raise RecipeError(KEY, "names no backend", f"name some of {known}, best first")
    for index, backend in enumerate(order):
        if backend not in BACKENDS:
            raise RecipeError(f"{KEY}[{index}]", f"{backend!r} is none", f"use some of {known}")
        if backend in order[:index]:
            raise RecipeError(KEY, f"{backend} is named twice", "name each backend once")


def _serves(backend: Backend, case: AttentionCase) -> bool:
    # Torch's own kernels are for both makers, cuDNN is NVIDIA's.
    cuda, half = case.device in {"cuda", "rocm"}, case.dtype in _HALF
    if backend == "flex":
        return case.dtype != "float64"
    if case.mask == "structured":
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
