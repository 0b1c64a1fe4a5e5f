"""Tensor and sequence parallelism: every rank of an axis holds a part of each large matrix.

The scheme is Megatron's, https://arxiv.org/abs/1909.08053, section 3, with sequence parallelism
as in https://arxiv.org/abs/2205.05198, section 4.2.2: maps into a block are split by columns,
maps out of it by rows, the vocabulary by rows. A layer costs two all-reduces forward and two
backward; with sequence parallelism an all-gather and a reduce-scatter take the place of each.
With fewer key-value heads than ranks, the maps to keys and values are held whole, each rank
reads the one head that its query heads share, and gradients are summed. Of the vocabulary a
rank computes the logits of its own rows: three numbers a token pass between ranks.
"""

from functools import partial
from typing import NamedTuple, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from typing_extensions import override

from components.distributed.collectives import start_gather
from components.distributed.tensor_blocks import HiddenLayout, split_block, split_columns
from components.distributed.tensor_lending import (
    GradientSum,
    part_of,
    place_parameters,
    replicate_parameters,
)
from components.distributed.tensor_styles import SplitCore, SplitNorm
from components.errors import RecipeError
from components.model.attention import Attention
from components.model.decoder import Decoder
from components.model.latent_attention import LatentAttention
from components.model.layer import Layer, collect_layers
from components.model.loss import Readout
from components.model.mlp import MLP
from components.model.norms import Norm
from components.model.positions import Placement as Placed
from components.model.softmax import Softmax, chunks, log_sums, sum_dtype


def split_tensors(
    decoder: Decoder,
    mesh: DeviceMesh,
    *,
    sequence_parallel: bool,
    reduce: torch.dtype = torch.float32,
) -> None:
    """Apply tensor parallelism to a decoder or a stage of one; ``mesh`` has one axis.

    Every parameter becomes a DTensor under its old name; all ranks must hold the same values.
    With ``sequence_parallel`` hidden states are [batch, sequence / ranks, dim] between layers
    and between stages, else whole on each rank. Tokens, documents and targets are always whole;
    the loss is the same on all ranks, and logits, without a gradient, come whole. One rank
    alone changes nothing. Of what all ranks hold, shares of a gradient are added up in
    ``reduce``, or in their own dtype where it is finer.

    Raises:
        RecipeError: experts, or heads, inner widths or rows that do not divide among the ranks.
    """
    if mesh.size() == 1:
        return
    _check(decoder, mesh.size())
    split = _Split(mesh, HiddenLayout(mesh.get_group(), sequence_parallel), reduce)
    _split_ends(decoder, split)
    for index, layer in collect_layers(decoder).items():
        _split_layer(cast("Layer", layer), split, index=int(index))


class _Split(NamedTuple):
    """The ranks, how hidden states travel between them, and in what gradients are summed."""

    mesh: DeviceMesh
    between: HiddenLayout
    reduce: torch.dtype

    @property
    def shares(self) -> GradientSum:
        return GradientSum(self.between.group, self.reduce)

    @property
    def of_slices(self) -> GradientSum | None:
        """What adds up gradients that each rank has from its own slice, where there are."""
        return self.shares if self.between.sliced else None


def _split_ends(decoder: Decoder, split: _Split) -> None:
    """Split what stands before the first layer and after the last, as far as it is here."""
    mesh, between, _ = split
    whole = [decoder.embedding_norm, decoder.positions, decoder.final_norm]
    for depth in decoder.mtp.values() if decoder.mtp is not None else ():
        # Whole projections: each rank maps its slice, or repeats what the others do.
        whole += [part for part in depth.children() if not isinstance(part, Layer)]
    for module in whole:
        if module is not None:
            replicate_parameters(module, mesh, shares=split.of_slices)
    if decoder.embedding is not None:
        decoder.embedding = SplitEmbedding(decoder.embedding, mesh, between=between)
    decoder.readout = SplitReadout(decoder.readout, mesh, between=between)
    if decoder.head is not None:
        place_parameters(decoder.head, mesh, Shard(0))
        decoder.head.readout = decoder.readout
    if between.sliced:
        decoder.sequence_slices = mesh.size()
        if decoder.positions is not None:
            decoder.positions.register_forward_hook(partial(_slice_embedded, mesh))


def _slice_embedded(
    mesh: DeviceMesh, module: nn.Module, inputs: tuple[Tensor, ...], placed: Placed
) -> None:
    if placed.embedded is not None:
        placed.embedded = placed.embedded.chunk(mesh.size())[mesh.get_local_rank()]


def _split_layer(layer: Layer, split: _Split, *, index: int) -> None:
    attention, mlp = layer.attention, cast("MLP", layer.mlp)
    mesh = split.mesh
    for norm in layer.norms:
        replicate_parameters(norm, mesh, shares=split.of_slices)
    widening = [one for one in (mlp.gate, mlp.up) if one is not None]
    for block, maps, output in (
        (attention, _reading(attention), attention.output),
        (mlp, widening, mlp.down),
    ):
        split_block(block, maps, output, mesh, between=split.between, shares=split.of_slices)
    for one in (attention.query, *widening):
        split_columns(one, mesh)
    if isinstance(mlp.activation, nn.Module):  # the same scalars for each rank's part
        replicate_parameters(mlp.activation, mesh, shares=split.shares)
    attention.first_head = mesh.get_local_rank() * attention.num_heads // mesh.size()
    if not split.between.sliced:  # sliced, all dropout draws from a rank's own stream
        attention.core = SplitCore(attention.core, mesh, layer=index)
    if isinstance(attention, LatentAttention):
        _split_latent(attention, split)
        return
    query_dim = attention.num_heads * attention.head_dim
    _split_norm(attention, "query_norm", split, dim=query_dim)
    _split_groups(attention, split)


def _reading(attention: Attention) -> list[nn.Module]:
    """List the maps that read the hidden states."""
    if isinstance(attention, LatentAttention):
        return [attention.query_down or attention.query, attention.key_value_down]
    return [attention.query, attention.key, attention.value]


def _split_latent(attention: LatentAttention, split: _Split) -> None:
    """Split what makes heads of latent vectors, which all ranks compute whole."""
    split_columns(attention.key_value, split.mesh)
    whole = (attention.query_down, attention.query_norm)
    for module in (*whole, attention.key_value_down, attention.key_value_norm):
        if module is not None:  # each rank's gradient is what its heads ask for
            replicate_parameters(module, split.mesh, shares=split.shares)


def _split_groups(attention: Attention, split: _Split) -> None:
    """Split the maps to keys and values, or let several ranks share a head."""
    mesh, shares = split.mesh, split.shares
    key_dim, ranks = attention.key.out_features, mesh.size()
    groups = key_dim // attention.head_dim
    if groups % ranks == 0:
        split_columns(attention.key, mesh)
        split_columns(attention.value, mesh)
        _split_norm(attention, "key_norm", split, dim=key_dim)
        return
    first = mesh.get_local_rank() * groups // ranks * attention.head_dim
    shared = slice(first, first + attention.head_dim)
    replicate_parameters(attention.value, mesh, shares=shares, rows=shared)
    if attention.key_norm is None or attention.norms_heads:
        replicate_parameters(attention.key, mesh, shares=shares, rows=shared)
        _split_norm(attention, "key_norm", split, dim=key_dim)
        return
    for module in (attention.key, attention.key_norm):  # a norm over all heads needs them all
        replicate_parameters(module, mesh, shares=shares)
    attention.key_norm.register_forward_hook(lambda _, __, keys: keys[..., shared])


def _split_norm(attention: Attention, name: str, split: _Split, *, dim: int) -> None:
    """Let a norm over all heads ask the other ranks; of each head it needs its own alone."""
    norm = getattr(attention, name)
    if norm is None:
        return
    if attention.norms_heads:  # the same weights on all ranks, for other heads
        replicate_parameters(norm, split.mesh, shares=split.shares)
        return
    assert isinstance(norm, Norm), "only the norms of this repository know their statistics"
    setattr(attention, name, SplitNorm(norm, split.mesh, dim=dim))


def _check(decoder: Decoder, ranks: int) -> None:
    for layer in collect_layers(decoder).values():
        if not isinstance(layer.mlp, MLP):
            problem = f"{ranks}, but experts are not split over this axis yet"
            raise RecipeError("parallelism.tensor", problem, "set parallelism.tensor=1")
        if not isinstance(layer.attention, LatentAttention):
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
    problem = f"{ranks} ranks cannot share {path} = {size:,} evenly"
    return RecipeError("parallelism.tensor", problem, "choose a degree that divides it")


class SplitEmbedding(nn.Embedding):
    """Look tokens up in this rank's equal part of the rows, and add what all ranks found.

    Raises:
        RecipeError: when called, the sequence cannot be sliced.
    """

    def __init__(
        self, embedding: nn.Embedding, mesh: DeviceMesh, *, between: HiddenLayout
    ) -> None:
        rows, dim = embedding.weight.shape
        super().__init__(rows, dim, device="meta")
        self.weight = embedding.weight
        self.mesh = mesh
        self.between = between
        place_parameters(self, mesh, Shard(0))

    @override
    def forward(self, input: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch slice dim"]:
        length, ranks = input.shape[1], self.mesh.size()
        if self.between.sliced and length % ranks:
            raise RecipeError(
                "budget.sequence_length",
                f"{length:,} tokens cannot be sliced for {ranks} tensor ranks",
                f"use {length + ranks - length % ranks:,}, "
                "or parallelism.sequence_parallel=false",
            )
        rows = part_of(cast("DTensor", self.weight))
        row, elsewhere = _rows_here(input, self.mesh, len(rows))
        found = F.embedding(row, rows).masked_fill(elsewhere[..., None], 0.0)
        return self.between.add(found)


class SplitReadout(Readout):
    """Take the place of a ``Readout`` where each rank has an equal part of the rows.

    Logits are gathered whole, for evaluation; the loss is the same on all ranks.
    """

    def __init__(self, whole: Readout, mesh: DeviceMesh, *, between: HiddenLayout) -> None:
        super().__init__(cap=whole.cap, z_loss=whole.z_loss)
        self.between = between
        self.softmax = SplitSoftmax(mesh)

    @override
    def forward(
        self,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor | None,
        counted: Tensor | None = None,
    ) -> Tensor:
        rows = part_of(cast("DTensor", weight))
        whole = self.between.gather(hidden)
        if targets is not None:
            return self.loss(whole, rows, targets, self.softmax, counted)
        parts = _everyones(self.capped(F.linear(whole, rows)), self.between.group)
        return torch.cat(list(parts), dim=-1)


class SplitSoftmax(Softmax):
    """Take loss and gradient from the logits of this rank's rows and the others' statistics."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh

    @override
    def to_gradient(
        self, logits: Tensor, targets: Tensor, counted: Tensor | None = None
    ) -> Tensor:
        row, elsewhere = _rows_here(targets[:, None], self.mesh, logits.shape[1])
        # For each token: the largest logit, the logarithm of the sum above it, the target's.
        share = logits.new_empty(3, len(targets), 1, dtype=sum_dtype(logits.dtype))
        share[2] = logits.gather(1, row).masked_fill(elsewhere, 0.0)
        for tokens in chunks(logits):
            share[0, tokens], share[1, tokens] = log_sums(logits[tokens])
        shares = _everyones(share, self.mesh.get_group())  # (ranks, 3, tokens, 1)
        log_sum = (shares[:, 0] + shares[:, 1]).logsumexp(0)
        of_target = shares[:, 2].sum(0) - log_sum
        part = (share[0] + share[1] - log_sum).exp()  # of all probability
        for tokens in chunks(logits):
            logits[tokens].mul_(part[tokens])
        one = of_target.expm1().to(logits.dtype)
        logits.scatter_(1, row, logits.gather(1, row).where(elsewhere, one))
        return -(of_target if counted is None else of_target * counted[:, None]).sum()

    @override
    def rows_here(self, targets: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        return _rows_here(targets, self.mesh, logits.shape[1])

    @override
    def of_all_rows(self, log_sum: Tensor, of_target: Tensor) -> tuple[Tensor, Tensor]:
        shares = _everyones(torch.stack([log_sum, of_target]), self.mesh.get_group())
        return shares[:, 0].logsumexp(0), shares[:, 1].sum(0)  # one rank has the target


@torch.no_grad()
def _everyones(part: Tensor, group: dist.ProcessGroup) -> Float[Tensor, "ranks *part"]:
    return start_gather(part[None], group=group, at_once=True)[0]


def _rows_here(tokens: Tensor, mesh: DeviceMesh, rows: int) -> tuple[Tensor, Tensor]:
    """Number the tokens' rows within this rank's ``rows``; where another has them, say so."""
    row = tokens - mesh.get_local_rank() * rows
    elsewhere = (row < 0) | (row >= rows)
    return row.masked_fill(elsewhere, 0), elsewhere
