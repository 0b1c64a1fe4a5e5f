"""Match our tensors to those of a Hugging Face class, and convert between the two.

A family lists its tensors once, as rows of a table. Each row works in both directions, so a
round trip is exact.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from components.config.model_spec.decoder import DecoderSpec
from components.errors import RecipeError

MTP_PREFIX = "mtp."  # of our names of the weights that predict further tokens
_MAX_NAME_CHARACTERS = 200
_MAX_NAMES = 6  # in one message; the rest are counted
_WIDE = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
_FLOATS = {*_WIDE, torch.float8_e4m3fn, torch.float8_e5m2}
Convert = Callable[[Sequence[Tensor]], Sequence[Tensor]]
Condition = Callable[[DecoderSpec, int], bool]  # of a model and the number of a layer


class Transform(NamedTuple):
    """Convert our tensors to theirs, and theirs to ours."""

    to_theirs: Convert
    to_ours: Convert


class ParamMapping(NamedTuple):
    """Tensors of ours and of theirs that hold the same numbers.

    Of vocabulary rows (``is_vocabulary``) the padding may be left out. A copy (``is_copy``) is
    written in addition to another mapping of the same tensors, and not read.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    transform: Transform
    is_vocabulary: bool = False
    is_copy: bool = False


class Weight(NamedTuple):
    """One row of a family's table: patterns of names, the transform, and when it applies.

    ``{layer}`` in a name is the number of the layer. A name with ``{expert}`` stands for as
    many names as there are experts. A transform that depends on sizes is a function of the
    features.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    transform: Transform | Callable[[DecoderSpec], Transform]
    applies: Condition
    is_vocabulary: bool = False
    is_copy: bool = False

    def map_params(self, features: DecoderSpec, layer: int) -> ParamMapping:
        """Fill in the numbers of the layer and of the experts."""
        experts = range(features.mlp.num_experts or 0)
        theirs = (
            name.replace("{layer}", str(layer)).replace("{expert}", str(expert))
            for name in self.theirs
            for expert in (experts if "{expert}" in name else (0,))
        )
        return ParamMapping(
            tuple(name.replace("{layer}", str(layer)) for name in self.ours),
            tuple(theirs),
            self.transform
            if isinstance(self.transform, Transform)
            else self.transform(features),
            self.is_vocabulary,
            self.is_copy,
        )


Weights = tuple[Weight, ...]


def map_weights(rows: Weights, features: DecoderSpec, layer: int = 0) -> Iterator[ParamMapping]:
    """Map the rows that apply to this model and this layer."""
    return (row.map_params(features, layer) for row in rows if row.applies(features, layer))


def always(features: DecoderSpec, layer: int) -> bool:
    """Apply to every model."""
    return True


def with_prefix(ours: str, theirs: str, rows: Weights) -> Weights:
    """Put a prefix before all names of a table."""
    return tuple(
        row._replace(
            ours=tuple(f"{ours}{name}" for name in row.ours),
            theirs=tuple(f"{theirs}{name}" for name in row.theirs),
        )
        for row in rows
    )


RENAME = Transform(tuple, tuple)
TRANSPOSE = Transform(
    to_theirs=lambda tensors: [tensor.T for tensor in tensors],
    to_ours=lambda tensors: [tensor.T for tensor in tensors],
)
# Theirs is added to 1. Exact to the last bit from 1/2 on, else to half a unit in the last place
# of 1: 6e-8 in float32. Narrow weights are widened before the sum, which would round them.
MINUS_ONE = Transform(
    to_theirs=lambda tensors: [tensors[0] - 1],
    to_ours=lambda tensors: [
        tensors[0].to(torch.promote_types(tensors[0].dtype, torch.float32)) + 1
    ],
)
UNSTACK = Transform(
    to_theirs=lambda tensors: tensors[0].unbind(),
    to_ours=lambda tensors: [torch.stack(list(tensors))],
)
# Query, key and value maps of equal width as one map that computes them one after the other.
CONCAT_QKV = Transform(
    to_theirs=lambda tensors: [torch.cat(list(tensors))],
    to_ours=lambda tensors: tensors[0].chunk(3),
)
CONCAT_QKV_TRANSPOSE = Transform(
    to_theirs=lambda tensors: [torch.cat(list(tensors)).T],
    to_ours=lambda tensors: tensors[0].T.chunk(3),
)


def interleave_qkv(features: DecoderSpec) -> Transform:
    """Join query, key and value to one map, head by head: q, k, v of one, then the next."""
    num_heads = features.attention.num_heads

    def join(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        by_head = [tensor.view(num_heads, -1, *tensor.shape[1:]) for tensor in tensors]
        return [torch.stack(by_head, 1).flatten(0, 2)]  # (heads, 3, head_dim, ...) flattened

    def split(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        by_head = tensors[0].view(num_heads, 3, -1, *tensors[0].shape[1:])
        return [tensor.flatten(0, 1) for tensor in by_head.unbind(1)]

    return Transform(join, split)


def swap_halves(num_heads: int) -> Transform:
    """Exchange the two halves of the rows of each head."""

    def swap(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        heads = tensors[0].view(num_heads, 2, -1, *tensors[0].shape[1:])
        return [heads.flip(1).flatten(0, 2)]

    return Transform(swap, swap)


def interleave_pairs(num_blocks: int, rotary_dim: int) -> Transform:
    """Reorder rows in equal blocks, the last ``rotary_dim`` of which rotate.

    Theirs rotate in neighboring pairs; ours have the first of each pair, then the others.
    """

    def reorder(tensors: Sequence[Tensor], *shape: int) -> list[Tensor]:
        rows = tensors[0].view(num_blocks, -1, tensors[0].shape[-1])
        fixed = rows.shape[1] - rotary_dim
        rotating = rows[:, fixed:].reshape(num_blocks, *shape, rows.shape[-1])
        rotating = rotating.transpose(1, 2).flatten(1, 2)
        return [torch.cat((rows[:, :fixed], rotating), 1).flatten(0, 1)]

    return Transform(
        to_theirs=lambda tensors: reorder(tensors, 2, rotary_dim // 2),
        to_ours=lambda tensors: reorder(tensors, rotary_dim // 2, 2),
    )


def weight(
    ours: str | tuple[str, ...],
    theirs: str | tuple[str, ...],
    transform: Transform | Callable[[DecoderSpec], Transform] = RENAME,
    applies: Condition = always,
) -> Weight:
    """Return a row for tensors with these full names."""
    return Weight(
        ours if isinstance(ours, tuple) else (ours,),
        theirs if isinstance(theirs, tuple) else (theirs,),
        transform,
        applies,
    )


def vocabulary(ours: str, theirs: str, applies: Condition = always) -> Weight:
    """Return a row for a matrix of vocabulary rows."""
    return weight(ours, theirs, applies=applies)._replace(is_vocabulary=True)


def norm(
    ours: str, theirs: str, transform: Transform = RENAME, applies: Condition = always
) -> Weights:
    """Return rows for the vectors that the norms of the model have."""

    def has_vector(kind: str) -> Condition:
        return lambda m, layer: getattr(m.norm, kind) and applies(m, layer)

    return tuple(
        weight(f"{ours}.{kind}", f"{theirs}.{kind}", transform, has_vector(kind))
        for kind in ("weight", "bias")
    )


def linear(
    ours: str | tuple[str, ...],
    theirs: str,
    transform: Transform | Callable[[DecoderSpec], Transform] = RENAME,
    bias: Transform | Callable[[DecoderSpec], Transform] = RENAME,
    applies: Condition = always,
) -> Weights:
    """Return rows for the matrix of a linear map, and its bias if that part has biases.

    Our name begins with the part, ``attention.`` or ``mlp.``.
    """
    names = ours if isinstance(ours, tuple) else (ours,)
    part = names[0].partition(".")[0]

    def has_bias(features: DecoderSpec, layer: int) -> bool:
        return getattr(features, part).bias and applies(features, layer)

    weights = tuple(f"{name}.weight" for name in names)
    biases = tuple(f"{name}.bias" for name in names)
    return (
        weight(weights, f"{theirs}.weight", transform, applies),
        weight(biases, f"{theirs}.bias", bias, has_bias),
    )


# A block with the names of Megatron-DeepSpeed, which Bloom has kept. Names and the order in
# ``query_key_value`` are those of GPTModelPipe in
# https://github.com/bigscience-workshop/Megatron-DeepSpeed and microsoft/Megatron-DeepSpeed.
QKV = ("attention.query", "attention.key", "attention.value")
MEGATRON_LAYER: Weights = (
    *norm("attention_norm", "input_layernorm"),
    *linear(QKV, "self_attention.query_key_value", interleave_qkv, interleave_qkv),
    *linear("attention.output", "self_attention.dense"),
    *norm("mlp_norm", "post_attention_layernorm"),
    *linear("mlp.up", "mlp.dense_h_to_4h"),
    *linear("mlp.down", "mlp.dense_4h_to_h"),
)


def has_own_head(features: DecoderSpec, layer: int) -> bool:
    """Whether the head has a matrix of its own."""
    return not features.tied_embeddings


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
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    short = (name[:_MAX_NAME_CHARACTERS] for name in names[:_MAX_NAMES])
    return ", ".join(name if name.isprintable() else repr(name) for name in short) + more


def name_differences(missing: Sequence[str], unknown: Sequence[str]) -> str:
    """List tensors without a partner, for a message; an empty text if there are none."""
    parts = (("missing", missing), ("unknown", unknown))
    return "; ".join(f"{what}: {name_some(which)}" for what, which in parts if which)
