"""Linear maps and matrix products, in autocast's precision, by the faster CPU library.

For float32 torch asks MKL, whose AVX-512 kernels are for Intel's processors alone: others run
at half the rate. oneDNN has them for all, and is asked for plain float32 matrices there.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from itertools import zip_longest
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from components.torch_internals.operators import has_kernel, linear_by_onednn, will_run

Asked = Callable[[str], bool]
# A graph of torch's compiler asks once, when it is made: in 2.10 it cannot ask later.
asked_once: Callable[[Asked], Asked] = torch.compiler.assume_constant_result


def product_dtype(tensor: Tensor) -> torch.dtype:
    """Choose what a linear map of ``tensor`` computes in."""
    return torch.get_autocast_dtype(tensor.device.type) if _casts(tensor) else tensor.dtype


def as_given(tensor: Tensor) -> AbstractContextManager[None]:
    """Let operations on ``tensor`` take what they are given, in the precision that it has."""
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if _casts(tensor) else nullcontext()


def _casts(tensor: Tensor) -> bool:
    device = tensor.device.type
    return _knows_autocast(device) and torch.is_autocast_enabled(device)


@asked_once
def _knows_autocast(device: str) -> bool:
    """Whether a kind of device has autocast; `meta` has not."""
    return torch.amp.is_autocast_available(device)


_HAS_KERNELS = (
    torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch's
    and torch.backends.cpu.get_cpu_capability() == "AVX512"
)
_PLAIN = (Tensor, nn.Parameter)  # not their subclasses


def linear(
    inputs: Float[Tensor, "*batch depth"],
    weight: Float[Tensor, "rows depth"],
    bias: Float[Tensor, " rows"] | None = None,
) -> Float[Tensor, "*batch rows"]:
    """Map the last dimension, ``inputs @ weight.T + bias``, as ``F.linear`` does."""
    if not goes_to_onednn(inputs, weight):
        return F.linear(inputs, weight, bias)
    apply: Callable[..., Tensor] = _Linear.apply  # torch leaves it untyped
    return apply(inputs, weight, bias)


def plain_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Map as `linear` does, where nobody differentiates."""
    by_onednn = goes_to_onednn(inputs, weight)
    return (_by_onednn if by_onednn else F.linear)(inputs, weight, bias)


class Linear(nn.Linear):
    """Map as torch's own does, by the library that is fast on this processor."""

    @override
    def forward(self, input: Float[Tensor, "*batch depth"]) -> Float[Tensor, "*batch rows"]:
        return linear(input, self.weight, self.bias)


class ResidualLinear(Linear):
    """Map a branch back onto the residual stream; initialization finds it by its mark."""

    writes_residual = True


def product(left: Tensor, right: Tensor) -> Tensor:
    """Multiply (rows, depth) by (depth, columns) where nobody differentiates."""
    return _by_onednn(left, right.T) if goes_to_onednn(left, right) else left @ right


def product_into(result: Tensor, left: Tensor, right: Tensor) -> None:
    """Multiply into ``result``; only oneDNN, which takes no result, makes one of its own."""
    if goes_to_onednn(left, right):
        result.copy_(_by_onednn(left, right.T))
    else:
        torch.mm(left, right, out=result)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add ``left @ right`` to ``total``, a float32 sum of narrow products too.

    Where no kernel adds to a wider sum, products are rounded before, some rows at a time.
    """
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    elif adds_wide(total.device.type, left.dtype):
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        for first in range(0, len(total), SLICE_ROWS):
            rows = slice(first, first + SLICE_ROWS)
            total[rows].add_(left[rows] @ right)


SLICE_ROWS = 4_096  # so that their product is little beside the sum


@cache
def adds_wide(device: str, dtype: torch.dtype) -> bool:
    """Whether a kind of device adds a narrow product to a float32 sum in one kernel."""
    try:  # the first kernels took no sum wider than the matrices
        if not has_kernel("aten::addmm.dtype_out", device):
            return False
        total, ones = (
            torch.ones(16, 16, device=device, dtype=x) for x in (torch.float32, dtype)
        )
        torch.addmm(total, ones, ones, out_dtype=torch.float32, out=total)
    except RuntimeError:
        return False
    return bool((total == 17.0).all())


def goes_to_onednn(inputs: Tensor, weight: Tensor) -> bool:
    """Whether these are plain float32 matrices on a processor whose products oneDNN does."""
    return (
        _HAS_KERNELS
        and type(inputs) in _PLAIN
        and type(weight) in _PLAIN
        and inputs.device.type == "cpu"
        and inputs.dtype == weight.dtype == torch.float32
        and product_dtype(inputs) == torch.float32
    )


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return _by_onednn(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        gradient = upstream[0].contiguous()
        rows = gradient.flatten(0, -2)
        of_inputs, of_weight, of_bias = wanted_gradients(ctx)
        return (
            _by_onednn(gradient, weight.T) if of_inputs else None,
            gradient_of_weight(rows, inputs.flatten(0, -2)) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


def wanted_gradients(ctx: Any) -> tuple[bool, ...]:
    """Schedules without a bubble ask for gradients of activations and of weights apart."""
    has: tuple[bool, ...] = ctx.needs_input_grad
    if torch.compiler.is_compiling():  # the compiler leaves out what nobody uses
        return has
    return tuple(
        each and will_run(node)
        for each, (node, _) in zip_longest(has, ctx.next_functions, fillvalue=(None, 0))
    )


def gradient_of_weight(gradient: Tensor, inputs: Tensor) -> Tensor:
    """Compute ``gradient.T @ inputs``; the left side, turned in memory, is the lesser one."""
    if not goes_to_onednn(gradient, inputs):
        return gradient.T @ inputs
    if gradient.shape[1] <= inputs.shape[1]:
        return _by_onednn(gradient.T, inputs.T)
    return _by_onednn(inputs.T, gradient.T).T.contiguous()


def _by_onednn(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if torch.compiler.is_compiling():
        return cast("Tensor", _compiled(inputs, weight, bias))
    if not (weight.is_contiguous() or weight.T.is_contiguous()):
        weight = weight.contiguous()  # it has a fast way for these two only
    return linear_by_onednn(inputs, weight, bias)


# Torch's compiler takes that operator for constant weights alone, as in inference.
@torch.library.custom_op("kochbuch::linear", mutates_args=())
def _compiled(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _by_onednn(inputs, weight, bias)


@_compiled.register_fake
def _shape(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return inputs.new_empty(*inputs.shape[:-1], len(weight))
