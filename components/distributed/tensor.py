"""Tensor and sequence parallelism: every rank of an axis holds a part of each large matrix.

The scheme is Megatron's, https://arxiv.org/abs/1909.08053, section 3, with sequence parallelism
as in https://arxiv.org/abs/2205.05198, section 4.2.2: maps into a block are split by columns,
maps out of it by rows, the vocabulary by rows. A layer costs two all-reduces forward and two
backward; with sequence parallelism an all-gather and a reduce-scatter take the place of each.
With fewer key-value heads than ranks, the maps to keys and values are held whole, each rank
reads the one head that its query heads share, and gradients are summed.
"""

from functools import partial
from typing import cast

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard

from components.distributed.dropout_streams import SplitCore
from components.distributed.tensor_styles import (
    SplitNorm,
    place_parameters,
    replicate_parameters,
    share_input,
    split_columns,
    split_rows,
)
from components.distributed.vocabulary import SplitEmbedding, SplitReadout
from components.errors import RecipeError
from components.model.attention import Attention
from components.model.decoder import Decoder, Layer
from components.model.mlp import MLP
from components.model.norms import Norm
from components.model.positions import Placement as Placed


def split_tensors(decoder: Decoder, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Apply tensor parallelism to a decoder or a stage of one; ``mesh`` has one axis.

    Every parameter becomes a DTensor under its old name; all ranks must hold the same values.
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
    for module in (decoder.embedding_norm, decoder.positions, decoder.final_norm):
        if module is not None:
            replicate_parameters(module, mesh, sum_gradients=between.is_shard())
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
    attention, mlp = layer.attention, cast("MLP", layer.mlp)
    for norm in (layer.attention_norm, layer.mlp_norm):
        replicate_parameters(norm, mesh, sum_gradients=between.is_shard())
    for block, output in ((attention, attention.output), (mlp, mlp.down)):
        share_input(block, mesh, between)
        split_rows(output, mesh, between)
    for widening in (attention.query, mlp.gate, mlp.up):
        if widening is not None:
            split_columns(widening, mesh)
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
        split_columns(attention.key, mesh)
        split_columns(attention.value, mesh)
        attention.key_norm = _split_norm(attention.key_norm, mesh, dim=key_dim)
        return
    first = mesh.get_local_rank() * groups // ranks * attention.head_dim
    shared = slice(first, first + attention.head_dim)
    replicate_parameters(attention.value, mesh, sum_gradients=True, rows=shared)
    if attention.key_norm is None:
        replicate_parameters(attention.key, mesh, sum_gradients=True, rows=shared)
        return
    for module in (attention.key, attention.key_norm):  # a norm over all heads needs them all
        replicate_parameters(module, mesh, sum_gradients=True)
    attention.key_norm.register_forward_hook(lambda _, __, keys: keys[..., shared])


def _split_norm(norm: nn.Module | None, mesh: DeviceMesh, *, dim: int) -> SplitNorm | None:
    if norm is None:
        return None
    assert isinstance(norm, Norm), "only the norms of this repository know their statistics"
    return SplitNorm(norm, mesh, dim=dim)


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
        for path, size in (
            ("model.attention.num_heads", layer.attention.num_heads),
            ("model.mlp.ffn_dim", layer.mlp.up.out_features),
        ):
            if size % ranks:
                raise _does_not_divide(path, size, ranks)
    for rows in (decoder.embedding, decoder.head):
        if rows is not None and len(rows.weight) % ranks:
            raise _does_not_divide("model.padded_vocab_size", len(rows.weight), ranks)


def _does_not_divide(path: str, size: int, ranks: int) -> RecipeError:
    return RecipeError(
        "parallelism.tensor",
        f"{ranks} ranks cannot share {path} = {size:,} evenly",
        "choose a degree that divides it",
    )
