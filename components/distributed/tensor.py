"""Tensor and sequence parallelism: every rank of an axis holds a part of each large matrix.

The scheme is Megatron's, https://arxiv.org/abs/1909.08053, section 3, with sequence parallelism
as in https://arxiv.org/abs/2205.05198, section 4.2.2: maps into a block are split by columns,
maps out of it by rows, the vocabulary by rows. A block's input is prepared once for all that
read it, so that a layer costs two all-reduces forward and two backward; with sequence
parallelism an all-gather and a reduce-scatter take the place of each, and the gradients of the
norms are summed besides.

Where a model has fewer key-value heads than there are ranks, each rank reads the one head that
its query heads share; the maps to keys and values are then held whole, and their gradients
summed.
"""

from functools import partial
from typing import cast

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from components.distributed.dropout_streams import SplitCore
from components.distributed.tensor_styles import (
    ColumnParallel,
    LocalParameters,
    RowParallel,
    SharedInput,
    SplitNorm,
    place_parameters,
)
from components.distributed.vocabulary import SplitEmbedding, SplitReadout
from components.errors import RecipeError
from components.model.attention import Attention
from components.model.decoder import Decoder, Layer
from components.model.mlp import MLP
from components.model.norms import Norm
from components.model.positions import Placement as Placed

Plan = dict[str, ParallelStyle]
_ALL = slice(None)


def split_tensors(decoder: Decoder, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Pour tensor parallelism over a decoder or a stage of one; ``mesh`` has one axis.

    Every parameter becomes a DTensor of that axis under its old name. They may be on ``meta``;
    elsewhere all ranks must hold the same values, of which each keeps its part. Gradients have
    their parameters' placements and are complete after each backward pass.

    With ``sequence_parallel`` hidden states are [batch, sequence / ranks, dim] between layers
    and between stages, else whole on each rank. Tokens, documents and targets are always whole;
    the loss is the same on all ranks, and logits come whole. One rank alone changes nothing.

    Raises:
        RecipeError: experts, or heads, inner widths or rows that do not divide among the ranks.
    """
    if mesh.size() == 1:
        return
    _check(decoder, mesh.size())
    between = Shard(1) if sequence_parallel else Replicate()
    _split_ends(decoder, mesh, between)
    for index, layer in decoder.layers.items():
        assert isinstance(layer, Layer)
        _split_layer(layer, mesh, between, index=int(index))


def _split_ends(decoder: Decoder, mesh: DeviceMesh, between: Placement) -> None:
    """Split what stands before the first layer and after the last, as far as it is here."""
    local = LocalParameters(sum_gradients=between.is_shard(), rows=_ALL)
    plan: Plan = {"embedding_norm": local, "positions": local, "final_norm": local}
    _pour(decoder, mesh, plan)
    if decoder.embedding is not None:
        decoder.embedding = SplitEmbedding(decoder.embedding, mesh, between=between)
    readout = SplitReadout(mesh, between=between)
    decoder.readout = readout
    if decoder.head is not None:
        place_parameters(decoder.head, mesh, Shard(0))
        decoder.head.readout = readout
    if between.is_shard():
        decoder.sequence_slices = mesh.size()
        if decoder.positions is not None:
            decoder.positions.register_forward_hook(partial(_slice_embedded, mesh))


def _slice_embedded(
    mesh: DeviceMesh, module: nn.Module, inputs: tuple[Tensor, ...], placed: Placed
) -> Placed:
    if placed.embedded is None:
        return placed
    return Placed(
        places=placed.places,
        embedded=placed.embedded.chunk(mesh.size())[mesh.get_local_rank()],
        rotation=placed.rotation,
        slopes=placed.slopes,
    )


def _split_layer(layer: Layer, mesh: DeviceMesh, between: Placement, *, index: int) -> None:
    local = LocalParameters(sum_gradients=between.is_shard(), rows=_ALL)
    attention, given = layer.attention, SharedInput(between=between)
    plan: Plan = {
        "attention_norm": local,
        "attention": given,
        "attention.query": ColumnParallel(),
        "attention.output": RowParallel(between=between),
        "mlp_norm": local,
        "mlp": given,
        "mlp.gate": ColumnParallel(),
        "mlp.up": ColumnParallel(),
        "mlp.down": RowParallel(between=between),
    }
    _pour(layer, mesh, plan)
    attention.first_head = mesh.get_local_rank() * attention.num_heads // mesh.size()
    if between.is_replicate():  # sliced, all dropout draws from a rank's own stream
        attention.core = SplitCore(attention.core, mesh, layer=index)
    attention.query_norm = _split_norm(
        attention.query_norm, mesh, dim=attention.num_heads * attention.head_dim
    )
    _split_groups(attention, mesh)


def _split_groups(attention: Attention, mesh: DeviceMesh) -> None:
    """Split the maps to keys and values, or let several ranks share a head."""
    key_dim, ranks = attention.key.out_features, mesh.size()
    groups = key_dim // attention.head_dim
    if groups % ranks == 0:
        _pour(attention, mesh, {"key": ColumnParallel(), "value": ColumnParallel()})
        attention.key_norm = _split_norm(attention.key_norm, mesh, dim=key_dim)
        return
    first = mesh.get_local_rank() * groups // ranks * attention.head_dim
    shared = slice(first, first + attention.head_dim)
    plan: Plan = {"value": LocalParameters(sum_gradients=True, rows=shared)}
    if attention.key_norm is None:
        plan["key"] = LocalParameters(sum_gradients=True, rows=shared)
    else:  # a norm over all heads needs them all
        plan["key"] = plan["key_norm"] = LocalParameters(sum_gradients=True, rows=_ALL)
        attention.key_norm.register_forward_hook(lambda _, __, keys: keys[..., shared])
    _pour(attention, mesh, plan)


def _split_norm(norm: nn.Module | None, mesh: DeviceMesh, *, dim: int) -> SplitNorm | None:
    if norm is None:
        return None
    assert isinstance(norm, Norm), "only the norms of this repository know their statistics"
    return SplitNorm(norm, mesh, dim=dim)


def _pour(module: nn.Module, mesh: DeviceMesh, plan: Plan) -> None:
    present = dict(module.named_modules())
    here = {path: style for path, style in plan.items() if path in present}
    parallelize_module(module, mesh, here, src_data_rank=None)


def _check(decoder: Decoder, ranks: int) -> None:
    for layer in cast("list[Layer]", list(decoder.layers.values())):
        if not isinstance(layer.mlp, MLP):
            raise RecipeError(
                "parallelism.tensor",
                f"{ranks}, but experts are not split over this axis yet",
                "set parallelism.tensor=1",
            )
        groups = layer.attention.key.out_features // layer.attention.head_dim
        if groups % ranks and ranks % groups:
            raise _does_not_divide("model.attention.num_kv_heads", groups, ranks)
        _check_divides("model.attention.num_heads", layer.attention.num_heads, ranks)
        _check_divides("model.mlp.ffn_dim", layer.mlp.up.out_features, ranks)
    for rows in (decoder.embedding, decoder.head):
        if rows is not None:
            _check_divides("model.padded_vocab_size", len(rows.weight), ranks)


def _check_divides(path: str, size: int, ranks: int) -> None:
    if size % ranks:
        raise _does_not_divide(path, size, ranks)


def _does_not_divide(path: str, size: int, ranks: int) -> RecipeError:
    return RecipeError(
        "parallelism.tensor",
        f"{ranks} ranks cannot share {path} = {size:,} evenly",
        "choose a degree that divides it",
    )
