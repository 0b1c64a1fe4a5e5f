"""Which tensors of ours are which of theirs, and how to turn the ones into the others.

A link joins a few tensors of ours to a few of theirs and goes both ways, so that a family
writes its table once and a round trip is exact.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from components.config.model_spec.decoder import DecoderSpec
from components.errors import RecipeError

FURTHER = "mtp."  # begins our names of what predicts further tokens
_LONGEST = 200  # characters of such a name
_NAMED = 6  # names in one message; the rest are counted
_WIDE = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
_FLOATS = {*_WIDE, torch.float8_e4m3fn, torch.float8_e5m2}
Turn = Callable[[Sequence[Tensor]], Sequence[Tensor]]


def _transposed(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    return [tensor.T for tensor in tensors]


class TensorLink(NamedTuple):
    """Tensors of ours and of theirs that hold the same numbers; most links only rename.

    One that ``is_copy`` is written beside another link of the same tensors, and not read.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    to_theirs: Turn = tuple
    to_ours: Turn = tuple
    is_vocabulary: bool = False
    is_copy: bool = False


def same(ours: str, theirs: str) -> TensorLink:
    """Join one tensor to one, under another name."""
    return TensorLink((ours,), (theirs,))


def vocabulary(ours: str, theirs: str) -> TensorLink:
    """Join two matrices of vocabulary rows, whose padding may be left out."""
    return TensorLink((ours,), (theirs,), is_vocabulary=True)


def module(ours: str, theirs: str, *, bias: bool = True) -> Iterator[TensorLink]:
    """Join the weights of two modules, and their biases if they have them."""
    yield same(f"{ours}.weight", f"{theirs}.weight")
    if bias:
        yield same(f"{ours}.bias", f"{theirs}.bias")


def turned(ours: str, theirs: str) -> Iterator[TensorLink]:
    """Join a linear map to one that stores its weight as ``(inputs, outputs)``."""
    yield TensorLink((f"{ours}.weight",), (f"{theirs}.weight",), _transposed, _transposed)
    yield same(f"{ours}.bias", f"{theirs}.bias")


def one_less(ours: str, theirs: str) -> TensorLink:
    """Join a weight to one whose class adds 1 to it.

    Exact to the last bit from 1/2 on, else to half a unit in the last place of 1: 6e-8 in
    float32. Narrower weights are widened first, or what is much less than 1 would be lost.
    """

    def widened(tensor: Tensor) -> Tensor:
        return tensor.to(torch.promote_types(tensor.dtype, torch.float32))

    return TensorLink(
        (ours,),
        (theirs,),
        to_theirs=lambda tensors: [tensors[0] - 1],
        to_ours=lambda tensors: [widened(tensors[0]) + 1],
    )


def unstacked(ours: str, theirs: Sequence[str]) -> TensorLink:
    """Join a stack along the first dimension to its slices."""
    return TensorLink(
        (ours,),
        tuple(theirs),
        to_theirs=lambda tensors: tensors[0].unbind(),
        to_ours=lambda tensors: [torch.stack(list(tensors))],
    )


def pairs_apart(ours: str, theirs: str, *, blocks: int, turned: int) -> TensorLink:
    """Join maps whose rows come in equal blocks, the last ``turned`` of which rotate.

    Theirs rotate in neighbouring pairs; ours have the first of each pair, then the others.
    """

    def swapped(part: Tensor, *shape: int) -> Tensor:
        return part.reshape(blocks, *shape, part.shape[-1]).transpose(1, 2).flatten(1, 2)

    def change(tensors: Sequence[Tensor], *shape: int) -> list[Tensor]:
        rows = tensors[0].view(blocks, -1, tensors[0].shape[-1])
        still = rows.shape[1] - turned
        return [torch.cat((rows[:, :still], swapped(rows[:, still:], *shape)), 1).flatten(0, 1)]

    return TensorLink(
        (ours,),
        (theirs,),
        to_theirs=lambda tensors: change(tensors, 2, turned // 2),
        to_ours=lambda tensors: change(tensors, turned // 2, 2),
    )


def joined(ours: Sequence[str], theirs: str, *, transposed: bool) -> TensorLink:
    """Join several maps of equal width to one that computes them one after the other."""

    def join(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        whole = torch.cat(list(tensors))
        return [whole.T if transposed else whole]

    def part(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        whole = tensors[0].T if transposed else tensors[0]
        return whole.chunk(len(ours))

    return TensorLink(tuple(ours), (theirs,), join, part)


def interleaved(ours: Sequence[str], theirs: str, *, num_heads: int) -> TensorLink:
    """Join several maps to one whose outputs go head by head: q, k, v of one, then the next."""

    def join(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        by_head = [tensor.view(num_heads, -1, *tensor.shape[1:]) for tensor in tensors]
        return [torch.stack(by_head, 1).flatten(0, 2)]  # (heads, maps, head_dim, ...) flattened

    def part(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        whole = tensors[0]
        by_head = whole.view(num_heads, len(ours), -1, *whole.shape[1:])
        return [tensor.flatten(0, 1) for tensor in by_head.unbind(1)]

    return TensorLink(tuple(ours), (theirs,), join, part)


def megatron_block(ours: str, theirs: str, features: DecoderSpec) -> Iterator[TensorLink]:
    """Link a block with the names of Megatron-DeepSpeed, which Bloom has kept.

    Names and the order in ``query_key_value``, head by head, are those of GPTModelPipe in
    https://github.com/bigscience-workshop/Megatron-DeepSpeed and microsoft/Megatron-DeepSpeed.
    """
    yield from module(f"{ours}.attention_norm", f"{theirs}.input_layernorm")
    for kind in ("weight", "bias"):
        yield interleaved(
            [f"{ours}.attention.{name}.{kind}" for name in ("query", "key", "value")],
            f"{theirs}.self_attention.query_key_value.{kind}",
            num_heads=features.attention.num_heads,
        )
    yield from module(f"{ours}.attention.output", f"{theirs}.self_attention.dense")
    yield from module(f"{ours}.mlp_norm", f"{theirs}.post_attention_layernorm")
    yield from module(f"{ours}.mlp.up", f"{theirs}.mlp.dense_h_to_4h")
    yield from module(f"{ours}.mlp.down", f"{theirs}.mlp.dense_4h_to_h")


def check_values(tensor: Tensor, where: str) -> Tensor:
    """Return a tensor that holds plain numbers, or raise a RecipeError.

    Quantized weights mean nothing without their scales. Sparse and meta tensors are not copied.
    """
    is_plain = tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_meta)
    if tensor.dtype not in _FLOATS or not is_plain:
        problem = f"holds {tensor.dtype} on {tensor.device.type}, {tensor.layout}"
        raise RecipeError(where, problem, "name weights of floating-point numbers")
    return tensor


def name_some(names: Sequence[str]) -> str:
    """List the first names and count the rest, for a message."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    named = (name[:_LONGEST] for name in names[:_NAMED])
    return ", ".join(name if name.isprintable() else repr(name) for name in named) + more


def name_differences(missing: Sequence[str], unknown: Sequence[str]) -> str:
    """List tensors without a partner, for a message; an empty text if there are none."""
    parts = (("missing", missing), ("unknown", unknown))
    return "; ".join(f"{what}: {name_some(which)}" for what, which in parts if which)
