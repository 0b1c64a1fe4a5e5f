"""Map our tensors to those of a Hugging Face class: a table whose rows work both ways."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from components.config.model_spec.decoder import DecoderSpec
from components.errors import RecipeError

MTP_PREFIX = "mtp."  # of our multi-token prediction weights
_MAX_NAME_CHARACTERS = 200
_MAX_NAMES = 6  # in one message; the rest is counted
_WIDE = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
_FLOATS = {*_WIDE, torch.float8_e4m3fn, torch.float8_e5m2}
Convert = Callable[[Sequence[Tensor]], Sequence[Tensor]]
Condition = Callable[[DecoderSpec, int], bool]  # of a model and a layer number


class Transform(NamedTuple):
    """Conversions of our tensors to theirs, and of theirs to ours."""

    to_theirs: Convert
    to_ours: Convert


class ParamMapping(NamedTuple):
    """Mapping between our tensors and their tensors with the same values.

    Vocabulary matrices (``is_vocabulary``) may omit padding rows. A copy (``is_copy``) is
    written in addition to another mapping of the same tensors and is not read.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    transform: Transform
    is_vocabulary: bool = False
    is_copy: bool = False


class Weight(NamedTuple):
    """One row of a family's table: name patterns, the transform, and when the row applies.

    ``{layer}`` in a name is the layer number. A name with ``{expert}`` stands for one name per
    expert. A transform that depends on sizes is a function of the features.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    transform: Transform | Callable[[DecoderSpec], Transform]
    applies: Condition
    is_vocabulary: bool = False
    is_copy: bool = False

    def map_params(self, features: DecoderSpec, layer: int) -> ParamMapping:
        """Return the mapping for one layer, with all numbers filled in."""
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
    """Return the mappings of the rows that apply to this model and layer."""
    return (row.map_params(features, layer) for row in rows if row.applies(features, layer))


def applies_always(features: DecoderSpec, layer: int) -> bool:
    """Condition of rows that apply to every model."""
    return True


def feature_condition(path: str, applies: Condition = applies_always) -> Condition:
    """Return the condition that a feature of the model is present and not false."""

    def has_feature(features: DecoderSpec, layer: int) -> bool:
        value: Any = features
        for name in path.split("."):
            value = getattr(value, name, None)
        return bool(value) and applies(features, layer)

    return has_feature


def with_prefix(ours: str, theirs: str, rows: Weights) -> Weights:
    """Return a table with prefixes added to all names."""
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
# Their weight plus 1 is ours. The sum is exact for values of at least 1/2, otherwise accurate
# to half a unit in the last place of 1: 6e-8 in float32. Narrow weights are widened before the
# sum, which would round them.
MINUS_ONE = Transform(
    to_theirs=lambda tensors: [tensors[0] - 1],
    to_ours=lambda tensors: [
        tensors[0].to(torch.promote_types(tensors[0].dtype, torch.float32)) + 1
    ],
)
UNSTACK = Transform(
    lambda tensors: tensors[0].unbind(), lambda tensors: [torch.stack(list(tensors))]
)
# Query, key and value matrices of equal width, concatenated into one matrix.
CONCAT_QKV = Transform(
    lambda tensors: [torch.cat(list(tensors))], lambda tensors: tensors[0].chunk(3)
)
CONCAT_QKV_TRANSPOSE = Transform(
    lambda tensors: [torch.cat(list(tensors)).T], lambda tensors: tensors[0].T.chunk(3)
)


def interleave_blocks(num_blocks: int, *rows: int) -> Transform:
    """Return the transform that interleaves tensors by block: ``rows`` of each per block."""

    def join_blocks(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        blocks = [tensor.view(num_blocks, -1, *tensor.shape[1:]) for tensor in tensors]
        return [torch.cat(blocks, 1).flatten(0, 1)]

    def split_blocks(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        blocks = tensors[0].view(num_blocks, -1, *tensors[0].shape[1:])
        return [part.flatten(0, 1) for part in torch.split(blocks, list(rows), 1)]

    return Transform(join_blocks, split_blocks)


def interleave_qkv(features: DecoderSpec) -> Transform:
    """Return the transform that interleaves query, key and value by head: q, k, v per head."""
    return interleave_blocks(features.attention.num_heads, *3 * (features.attention.head_dim,))


def swap_halves(num_heads: int) -> Transform:
    """Return the transform that swaps the two halves of each head's rows."""

    def swap_rows(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        heads = tensors[0].view(num_heads, 2, -1, *tensors[0].shape[1:])
        return [heads.flip(1).flatten(0, 2)]

    return Transform(swap_rows, swap_rows)


def interleave_pairs(num_blocks: int, rotary_dim: int) -> Transform:
    """Return the transform that reorders the rotary rows, the last ``rotary_dim`` per block.

    Their rows rotate in neighboring pairs. Ours have the first of all pairs, then the second.
    """

    def reorder_rows(tensors: Sequence[Tensor], *shape: int) -> list[Tensor]:
        rows = tensors[0].view(num_blocks, -1, tensors[0].shape[-1])
        fixed = rows.shape[1] - rotary_dim
        rotating = rows[:, fixed:].reshape(num_blocks, *shape, rows.shape[-1])
        rotating = rotating.transpose(1, 2).flatten(1, 2)
        return [torch.cat((rows[:, :fixed], rotating), 1).flatten(0, 1)]

    return Transform(
        to_theirs=lambda tensors: reorder_rows(tensors, 2, rotary_dim // 2),
        to_ours=lambda tensors: reorder_rows(tensors, rotary_dim // 2, 2),
    )


def map_weight(
    ours: str | tuple[str, ...],
    theirs: str | tuple[str, ...],
    transform: Transform | Callable[[DecoderSpec], Transform] = RENAME,
    applies: Condition = applies_always,
) -> Weight:
    """Return a table row for tensors with these full names."""
    return Weight(
        ours if isinstance(ours, tuple) else (ours,),
        theirs if isinstance(theirs, tuple) else (theirs,),
        transform,
        applies,
    )


def map_vocabulary(ours: str, theirs: str, applies: Condition = applies_always) -> Weight:
    """Return a table row for a matrix of vocabulary rows."""
    return map_weight(ours, theirs, applies=applies)._replace(is_vocabulary=True)


def map_norm(
    ours: str, theirs: str, transform: Transform = RENAME, applies: Condition = applies_always
) -> Weights:
    """Return table rows for the weight and bias of a norm, if the model's norms have them."""
    return tuple(
        map_weight(
            f"{ours}.{kind}",
            f"{theirs}.{kind}",
            transform,
            feature_condition(f"norm.{kind}", applies),
        )
        for kind in ("weight", "bias")
    )


def map_linear(
    ours: str | tuple[str, ...],
    theirs: str,
    transform: Transform | Callable[[DecoderSpec], Transform] = RENAME,
    bias: Transform | Callable[[DecoderSpec], Transform] = RENAME,
    applies: Condition = applies_always,
) -> Weights:
    """Return table rows for the matrix of a linear layer, and its bias if the part has biases.

    Our name starts with the part, ``attention.`` or ``mlp.``.
    """
    names = ours if isinstance(ours, tuple) else (ours,)
    part = names[0].partition(".")[0]
    weights = tuple(f"{name}.weight" for name in names)
    biases = tuple(f"{name}.bias" for name in names)
    return (
        map_weight(weights, f"{theirs}.weight", transform, applies),
        map_weight(biases, f"{theirs}.bias", bias, feature_condition(f"{part}.bias", applies)),
    )


# A block with the names of Megatron-DeepSpeed, which Bloom also uses. The names and the order
# in ``query_key_value`` are from GPTModelPipe in
# https://github.com/bigscience-workshop/Megatron-DeepSpeed and microsoft/Megatron-DeepSpeed.
QKV = ("attention.query", "attention.key", "attention.value")
MEGATRON_LAYER: Weights = (
    *map_norm("attention_norm", "input_layernorm"),
    *map_linear(QKV, "self_attention.query_key_value", interleave_qkv, interleave_qkv),
    *map_linear("attention.output", "self_attention.dense"),
    *map_norm("mlp_norm", "post_attention_layernorm"),
    *map_linear("mlp.up", "mlp.dense_h_to_4h"),
    *map_linear("mlp.down", "mlp.dense_4h_to_h"),
)


def has_own_head(features: DecoderSpec, layer: int) -> bool:
    """Condition of rows of an output head that is not tied to the embedding."""
    return not features.tied_embeddings


def check_values(tensor: Tensor, where: str) -> Tensor:
    """Return a dense floating-point tensor; quantized, sparse and meta are a RecipeError."""
    is_plain = tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_meta)
    if tensor.dtype not in _FLOATS or not is_plain:
        problem = f"is {tensor.dtype} on {tensor.device.type}, {tensor.layout}"
        raise RecipeError(where, problem, "use dense floating-point weights")
    return tensor


def name_some(names: Sequence[str]) -> str:
    """Return the first names and the number of the rest, for a message."""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    short = (name[:_MAX_NAME_CHARACTERS] for name in names[:_MAX_NAMES])
    return ", ".join(name if name.isprintable() else repr(name) for name in short) + more


def name_differences(missing: Sequence[str], unknown: Sequence[str]) -> str:
    """Return a message about missing and unknown tensors; empty if there are none."""
    parts = (("missing", missing), ("unknown", unknown))
    return "; ".join(f"{what}: {name_some(names)}" for what, names in parts if names)
