"""Linear maps and matrix products in autocast's precision, with the faster CPU library.

Torch calls MKL for float32. MKL has AVX-512 kernels for Intel processors only; others run at
half the rate. So this module calls oneDNN for plain float32 matrices on AVX-512 CPUs.
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

DevicePredicate = Callable[[str], bool]
# Call the function once, while torch's compiler traces: torch 2.10 cannot call it in the graph.
trace_constant: Callable[[DevicePredicate], DevicePredicate] = (
    torch.compiler.assume_constant_result
)


def product_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype in which a linear map of ``tensor`` computes."""
    return torch.get_autocast_dtype(tensor.device.type) if _casts(tensor) else tensor.dtype


def as_given(tensor: Tensor) -> AbstractContextManager[None]:
    """Disable autocast for the device of ``tensor``: operations keep their inputs' dtype."""
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if _casts(tensor) else nullcontext()


def _casts(tensor: Tensor) -> bool:
    device = tensor.device.type
    return _knows_autocast(device) and torch.is_autocast_enabled(device)


@trace_constant
def _knows_autocast(device: str) -> bool:
    """Return whether a device type supports autocast; `meta` does not."""
    return torch.amp.is_autocast_available(device)


_HAS_KERNELS = (
    torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch has no types here
    and torch.backends.cpu.get_cpu_capability() == "AVX512"
)
_PLAIN = (Tensor, nn.Parameter)  # not their subclasses


def apply_linear(
    inputs: Float[Tensor, "*batch depth"],
    weight: Float[Tensor, "rows depth"],
    bias: Float[Tensor, " rows"] | None = None,
) -> Float[Tensor, "*batch rows"]:
    """Compute ``inputs @ weight.T + bias``, as ``F.linear`` does."""
    if not goes_to_onednn(inputs, weight):
        return F.linear(inputs, weight, bias)
    apply: Callable[..., Tensor] = _Linear.apply  # torch leaves it untyped
    return apply(inputs, weight, bias)


def plain_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute `apply_linear` without support for gradients."""
    by_onednn = goes_to_onednn(inputs, weight)
    return (_by_onednn if by_onednn else F.linear)(inputs, weight, bias)


class Linear(nn.Linear):
    """Torch's ``nn.Linear``, with the library that is fast on this processor."""

    @override
    def forward(self, input: Float[Tensor, "*batch depth"]) -> Float[Tensor, "*batch rows"]:
        return apply_linear(input, self.weight, self.bias)


class ResidualLinear(Linear):
    """Linear map from a branch to the residual stream; initialization reads its flag."""

    writes_residual = True


def multiply_matrices(left: Tensor, right: Tensor) -> Tensor:
    """Multiply (rows, depth) by (depth, columns) without support for gradients."""
    return _by_onednn(left, right.T) if goes_to_onednn(left, right) else left @ right


def product_into(result: Tensor, left: Tensor, right: Tensor) -> None:
    """Write ``left @ right`` to ``result``; oneDNN takes no output, so its result is copied."""
    if goes_to_onednn(left, right):
        result.copy_(_by_onednn(left, right.T))
    else:
        torch.mm(left, right, out=result)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add ``left @ right`` to ``total``, which may be float32 when the matrices are 16-bit.

    Without such a kernel, products are rounded to 16 bits first, `SLICE_ROWS` rows at a time.
    """
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    elif adds_wide(total.device.type, left.dtype):
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        for first in range(0, len(total), SLICE_ROWS):
            rows = slice(first, first + SLICE_ROWS)
            total[rows].add_(left[rows] @ right)


SLICE_ROWS = 4_096  # keeps the temporary product small compared with the sum


@cache
def adds_wide(device: str, dtype: torch.dtype) -> bool:
    """Return whether a device type adds a 16-bit product to a float32 sum in one kernel."""
    try:  # the first versions of the kernel required a sum of the matrices' dtype
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
    """Return whether oneDNN multiplies these: plain float32 matrices on an AVX-512 CPU."""
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
        needs_inputs, needs_weight, needs_bias = wanted_gradients(ctx)
        return (
            _by_onednn(gradient, weight.T) if needs_inputs else None,
            gradient_of_weight(rows, inputs.flatten(0, -2)) if needs_weight else None,
            rows.sum(0) if needs_bias else None,
        )


def wanted_gradients(ctx: Any) -> tuple[bool, ...]:
    """Return which gradients this pass needs: zero-bubble schedules separate the weights'."""
    needs: tuple[bool, ...] = ctx.needs_input_grad
    if torch.compiler.is_compiling():  # the compiler removes unused results
        return needs
    return tuple(
        needed and will_run(node)
        for needed, (node, _) in zip_longest(needs, ctx.next_functions, fillvalue=(None, 0))
    )


def gradient_of_weight(gradient: Tensor, inputs: Tensor) -> Tensor:
    """Compute ``gradient.T @ inputs``; oneDNN transposes the narrower matrix in memory."""
    if not goes_to_onednn(gradient, inputs):
        return gradient.T @ inputs
    if gradient.shape[1] <= inputs.shape[1]:
        return _by_onednn(gradient.T, inputs.T)
    return _by_onednn(inputs.T, gradient.T).T.contiguous()


def _by_onednn(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if torch.compiler.is_compiling():
        return cast("Tensor", _compiled(inputs, weight, bias))
    if not (weight.is_contiguous() or weight.T.is_contiguous()):
        weight = weight.contiguous()  # oneDNN is fast for these two layouts only
    return linear_by_onednn(inputs, weight, bias)


# Torch's compiler supports the oneDNN operator for constant weights only, as in inference.
@torch.library.custom_op("kochbuch::linear", mutates_args=())
def _compiled(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _by_onednn(inputs, weight, bias)


@_compiled.register_fake
def _shape(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return inputs.new_empty(*inputs.shape[:-1], len(weight))
