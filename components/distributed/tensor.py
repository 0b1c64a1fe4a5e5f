"""Tensor and sequence parallelism: every rank of an axis has a part of each large matrix.

The scheme is Megatron's, https://arxiv.org/abs/1909.08053, section 3, with sequence parallelism
as in https://arxiv.org/abs/2205.05198, section 4.2.2. A block's input projections are split by
columns, its output projection and the vocabulary by rows. A layer costs two all-reduces forward
and two backward; with sequence parallelism each becomes an all-gather and a reduce-scatter.
With fewer key-value heads than ranks, all ranks have the whole key and value projections, read
the head that their query heads share, and sum the gradients. A rank computes the logits of its
own vocabulary rows; ranks exchange three numbers per token.
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
from components.distributed.local_parameters import (
    GradientSum,
    place_parameters,
    replicate_parameters,
    to_local,
)
from components.distributed.tensor_blocks import HiddenLayout, split_block, split_columns
from components.distributed.tensor_styles import TensorParallelAttention, TensorParallelNorm
from components.errors import RecipeError
from components.model.attention import Attention
from components.model.decoder import Decoder
from components.model.latent_attention import LatentAttention
from components.model.layer import Layer, collect_layers
from components.model.loss import Readout
from components.model.mixers.mixer import Mixer
from components.model.mlp import MLP
from components.model.norms import Norm
from components.model.positions import PositionEncoding
from components.model.softmax import Softmax, log_sums, split_chunks, sum_dtype


def split_tensors(
    decoder: Decoder,
    mesh: DeviceMesh,
    *,
    sequence_parallel: bool,
    reduce: torch.dtype = torch.float32,
) -> None:
    """Apply tensor parallelism to a decoder or one of its stages; ``mesh`` has one axis.

    Every parameter becomes a DTensor under its old name; all ranks must have the same values.
    With ``sequence_parallel`` hidden states are [batch, sequence / ranks, dim] between layers
    and stages, otherwise whole. Tokens, documents and targets are always whole. The loss is the
    same on all ranks. Logits are whole and have no gradient. Gradients of replicated parameters
    are summed in ``reduce``, or in their own dtype if it is wider. Raises RecipeError if the
    model has experts, or does not divide among the ranks.
    """
    if mesh.size() == 1:
        return
    _check(decoder, mesh.size())
    split = _Split(mesh, HiddenLayout(mesh.get_group(), sequence_parallel), reduce)
    _split_ends(decoder, split)
    for index, layer in collect_layers(decoder).items():
        _split_layer(cast("Layer", layer), split, index=int(index))


class _Split(NamedTuple):
    """Tensor ranks, layout of hidden states between them, and dtype of gradient sums."""

    mesh: DeviceMesh
    between: HiddenLayout
    reduce: torch.dtype

    @property
    def gradient_sum(self) -> GradientSum:
        return GradientSum(self.between.group, self.reduce)

    @property
    def of_slices(self) -> GradientSum | None:
        """Sum of gradients over the ranks' sequence slices; None without slices."""
        return self.gradient_sum if self.between.sliced else None


def _split_ends(decoder: Decoder, split: _Split) -> None:
    """Split this stage's modules before the first layer and after the last layer."""
    mesh, between, _ = split
    whole = [decoder.embedding_norm, decoder.positions, decoder.final_norm]
    for depth in decoder.mtp.values() if decoder.mtp is not None else ():
        # Projections stay whole: each rank maps its slice, or repeats the others' work.
        whole += [part for part in depth.children() if not isinstance(part, Layer)]
    for module in whole:
        if module is not None:
            replicate_parameters(module, mesh, shares=split.of_slices)
    if decoder.embedding is not None:
        decoder.embedding = VocabParallelEmbedding(decoder.embedding, mesh, between=between)
    decoder.readout = VocabParallelHead(decoder.readout, mesh, between=between)
    if decoder.head is not None:
        place_parameters(decoder.head, mesh, Shard(0))
        decoder.head.readout = decoder.readout
    if between.sliced:
        decoder.sequence_slices = mesh.size()
        if decoder.positions is not None:
            decoder.positions.register_forward_hook(partial(_slice_embedded, mesh))


def _slice_embedded(
    mesh: DeviceMesh, module: nn.Module, inputs: tuple[Tensor, ...], placed: PositionEncoding
) -> None:
    if placed.embedded is not None:
        placed.embedded = placed.embedded.chunk(mesh.size())[mesh.get_local_rank()]


def _split_layer(layer: Layer, split: _Split, *, index: int) -> None:
    for norm in layer.hidden_norms:
        replicate_parameters(norm, split.mesh, shares=split.of_slices)
    if layer.attention is not None:
        _split_attention(layer.attention, split, index=index)
    if layer.mixer is not None:
        _split_mixer(layer.mixer, split)
    if layer.mlp is not None:
        _split_mlp(cast("MLP", layer.mlp), split)


def _split_mixer(mixer: Mixer, split: _Split) -> None:
    """Split a linear mixer by groups of heads; a rank has the states of its heads.

    All ranks compute whole latent vectors, and share the weights of a norm per head.
    """
    mesh, shares, maps = split.mesh, split.gradient_sum, [*mixer.split_maps, *mixer.latent_maps]
    between, of_slices = split.between, split.of_slices
    split_block(mixer, maps, mixer.output, mesh, between=between, shares=of_slices)
    for linear in mixer.latent_maps:
        replicate_parameters(linear, mesh, shares=shares)
    for linear in (*mixer.split_maps, *mixer.inner_maps):
        split_columns(linear, mesh)
    rows: list[nn.Module] = [mixer.query_conv, mixer.key_conv, mixer.value_conv, mixer]
    if mixer.norm is not None and mixer.spec.groups_norm:
        rows.append(mixer.norm)
    elif mixer.norm is not None:
        replicate_parameters(mixer.norm, mesh, shares=shares)
    for module in rows:
        split_columns(module, mesh)


def _split_mlp(mlp: MLP, split: _Split) -> None:
    maps, mesh = [linear for linear in (mlp.gate, mlp.up) if linear is not None], split.mesh
    split_block(mlp, maps, mlp.down, mesh, between=split.between, shares=split.of_slices)
    for linear in maps:
        split_columns(linear, mesh)
    if isinstance(mlp.activation, nn.Module):  # the same scalars for each rank's part
        replicate_parameters(mlp.activation, mesh, shares=split.gradient_sum)


def _split_attention(attention: Attention, split: _Split, *, index: int) -> None:
    mesh, shares = split.mesh, split.of_slices
    maps, output = _reading(attention), attention.output
    split_block(attention, maps, output, mesh, between=split.between, shares=shares)
    split_columns(attention.query, mesh)
    attention.first_head = mesh.get_local_rank() * attention.num_heads // mesh.size()
    if not split.between.sliced:  # sliced, all dropout draws from a rank's own stream
        attention.core = TensorParallelAttention(attention.core, mesh, layer=index)
    if isinstance(attention, LatentAttention):
        _split_latent(attention, split)
        return
    query_dim = attention.num_heads * attention.head_dim
    if attention.gate is not None:
        split_columns(attention.gate, mesh)
    if attention.sinks is not None:
        split_columns(attention, mesh)  # only its own parameter, the sinks
    _split_norm(attention, "query_norm", split, dim=query_dim)
    _split_groups(attention, split)


def _reading(attention: Attention) -> list[nn.Module]:
    """Return the linear maps that read the hidden states."""
    if isinstance(attention, LatentAttention):
        return [attention.query_down or attention.query, attention.key_value_down]
    maps = attention.query, attention.key, attention.value, attention.gate
    return [linear for linear in maps if linear is not None]


def _split_latent(attention: LatentAttention, split: _Split) -> None:
    """Split the map from latent vectors to heads; all ranks compute whole latent vectors."""
    split_columns(attention.key_value, split.mesh)
    whole = (attention.query_down, attention.query_norm)
    for module in (*whole, attention.key_value_down, attention.key_value_norm):
        if module is not None:  # each rank has the gradient of its own heads
            replicate_parameters(module, split.mesh, shares=split.gradient_sum)


def _split_groups(attention: Attention, split: _Split) -> None:
    """Split the key and value projections, or share a key-value head between ranks."""
    mesh, shares = split.mesh, split.gradient_sum
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
    for module in (attention.key, attention.key_norm):  # the norm is over all heads
        replicate_parameters(module, mesh, shares=shares)
    attention.key_norm.register_forward_hook(lambda _, __, keys: keys[..., shared])


def _split_norm(attention: Attention, name: str, split: _Split, *, dim: int) -> None:
    """Make a norm over all heads use all ranks; a norm per head only needs its own head."""
    norm = getattr(attention, name)
    if norm is None:
        return
    if attention.norms_heads:  # the same weights on all ranks, for different heads
        replicate_parameters(norm, split.mesh, shares=split.gradient_sum)
        return
    assert isinstance(norm, Norm), "only the norms of this repository know their statistics"
    setattr(attention, name, TensorParallelNorm(norm, split.mesh, dim=dim))


def _check(decoder: Decoder, ranks: int) -> None:
    for layer in collect_layers(decoder).values():
        attention, mixer, mlp = layer.attention, layer.mixer, layer.mlp
        if not isinstance(mlp, MLP | None):
            problem = f"{ranks}, but experts cannot be split over this axis yet"
            raise RecipeError("parallelism.tensor", problem, "set parallelism.tensor=1")
        if not isinstance(attention, LatentAttention | None):
            groups = attention.key.out_features // attention.head_dim
            if groups % ranks and ranks % groups:
                raise _does_not_divide("model.attention.num_kv_heads", groups, ranks)
        for path, size in (
            ("model.attention.num_heads", attention.num_heads if attention else 0),
            ("model.mixers", mixer.spec.key_heads if mixer else 0),
            ("model.mlp.ffn_dim", mlp.up.out_features if mlp else 0),
        ):
            if size % ranks:
                raise _does_not_divide(path, size, ranks)
    for rows in (decoder.embedding, decoder.head):
        if rows is not None and len(rows.weight) % ranks:
            raise _does_not_divide("model.padded_vocab_size", len(rows.weight), ranks)


def _does_not_divide(path: str, size: int, ranks: int) -> RecipeError:
    problem = f"{ranks} does not divide {path} = {size:,}"
    return RecipeError("parallelism.tensor", problem, "set it to a divisor of that number")


class VocabParallelEmbedding(nn.Embedding):
    """Embedding with an equal part of the rows on each rank; it sums the ranks' results."""

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
                f"{length:,} tokens are not divisible by {ranks} tensor ranks",
                f"use {length + ranks - length % ranks:,}, "
                "or parallelism.sequence_parallel=false",
            )
        rows = to_local(cast("DTensor", self.weight))
        row, elsewhere = _rows_here(input, self.mesh, len(rows))
        embedded = F.embedding(row, rows).masked_fill(elsewhere[..., None], 0.0)
        return self.between.add_shares(embedded)


class VocabParallelHead(Readout):
    """Readout with an equal part of the rows on each rank.

    Logits are gathered whole, for evaluation. The loss is the same on all ranks.
    """

    def __init__(self, whole: Readout, mesh: DeviceMesh, *, between: HiddenLayout) -> None:
        super().__init__(cap=whole.cap, z_loss=whole.z_loss)
        self.between = between
        self.softmax = VocabParallelCrossEntropy(mesh)

    @override
    def forward(
        self,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor | None,
        counted: Tensor | None = None,
    ) -> Tensor:
        rows = to_local(cast("DTensor", weight))
        whole = self.between.gather_hidden(hidden)
        if targets is not None:
            return self.compute_loss(whole, rows, targets, self.softmax, counted)
        parts = _everyones(self.cap_logits(F.linear(whole, rows)), self.between.group)
        return torch.cat(list(parts), dim=-1)


class VocabParallelCrossEntropy(Softmax):
    """Cross-entropy from the logits of this rank's rows and the other ranks' statistics."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh

    @override
    def to_gradient(
        self, logits: Tensor, targets: Tensor, counted: Tensor | None = None
    ) -> Tensor:
        row, elsewhere = _rows_here(targets[:, None], self.mesh, logits.shape[1])
        # Per token: the largest logit, the log of the sum relative to it, the target's logit.
        share = logits.new_empty(3, len(targets), 1, dtype=sum_dtype(logits.dtype))
        share[2] = logits.gather(1, row).masked_fill(elsewhere, 0.0)
        for tokens in split_chunks(logits):
            share[0, tokens], share[1, tokens] = log_sums(logits[tokens])
        shares = _everyones(share, self.mesh.get_group())  # (ranks, 3, tokens, 1)
        log_sum = (shares[:, 0] + shares[:, 1]).logsumexp(0)
        of_target = shares[:, 2].sum(0) - log_sum
        part = (share[0] + share[1] - log_sum).exp()  # this rank's share of the probability
        for tokens in split_chunks(logits):
            logits[tokens].mul_(part[tokens])
        target_gradient = of_target.expm1().to(logits.dtype)
        logits.scatter_(1, row, logits.gather(1, row).where(elsewhere, target_gradient))
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
    """Return tokens' rows among this rank's ``rows``, and a mask of other ranks' tokens."""
    row = tokens - mesh.get_local_rank() * rows
    elsewhere = (row < 0) | (row >= rows)
    return row.masked_fill(elsewhere, 0), elsewhere
