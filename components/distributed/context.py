"""Context parallelism: every rank of an axis holds a part of each sequence.

With C ranks a sequence is cut into 2 C equal chunks, and rank r holds chunks r and 2 C - 1 - r
(Llama 3, https://arxiv.org/abs/2407.21783, section 3.3.2): under a causal mask each rank then
has as many pairs of query and key to compute as any other. Attention gathers the keys and
values of all ranks; everything else in a decoder works token by token and does not notice.
"""

from dataclasses import dataclass
from typing import Self

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from typing_extensions import override

from components.distributed.collectives import gather_rows
from components.model import attention_kernels
from components.model.attention import AttentionCore, ForwardScope, QueryBlock
from components.model.decoder import Decoder
from components.model.layer import collect_layers


def split_sequence(decoder: Decoder, mesh: DeviceMesh) -> None:
    """Apply context parallelism to a decoder or a stage of one; ``mesh`` has one axis.

    Tokens, targets and hidden states are then this rank's `SequencePart`; documents stay those
    of the whole sequence. The loss is the mean over this rank's tokens, and gradients are
    averaged as over data ranks. Call it before `split_tensors`. One rank changes nothing.
    """
    if mesh.size() == 1:
        return
    decoder.places = SequencePart.here(mesh).places
    decoder.sequence_parts = mesh.size()
    for layer in collect_layers(decoder).values():
        layer.attention.core = ContextCore(layer.attention.core, mesh)


@dataclass(frozen=True, kw_only=True)
class SequencePart:
    """The part of a sequence that one rank of a context axis holds: two chunks, in order."""

    rank: int
    ranks: int

    @classmethod
    def here(cls, mesh: DeviceMesh) -> Self:
        return cls(rank=mesh.get_local_rank(), ranks=mesh.size())

    @property
    def chunks(self) -> tuple[int, int]:
        """Number the two chunks among all: early queries see little, late ones much."""
        return self.rank, 2 * self.ranks - 1 - self.rank

    def places(self, length: int, device: torch.device) -> Int[Tensor, " length"]:
        chunk = length // 2
        return torch.cat([
            torch.arange(index * chunk, (index + 1) * chunk, device=device)
            for index in self.chunks
        ])

    def take(self, rows: Int[Tensor, "batch whole"]) -> Int[Tensor, "batch part"]:
        """Take the part out of whole sequences, whose length 2 x ranks divides."""
        if self.ranks == 1:
            return rows
        count = 2 * self.ranks
        assert rows.shape[1] % count == 0, "the recipe's rules let only these through"
        chunks = rows.chunk(count, dim=1)
        return torch.cat([chunks[index] for index in self.chunks], dim=1)


class ContextCore(AttentionCore):
    """Attend from this rank's queries to the keys of all ranks.

    ``flex_attention`` takes all of them at once, and leaves out the blocks that no query sees.
    Other kernels take one chunk of queries after the other, each up to its own end: chunk i of
    2 C computes on i + 1 chunks of keys, the two of a rank on 2 C + 1. Either way the work is
    balanced. On a CPU slopes, documents and windows need a dense mask of the same pairs.
    """

    in_one_graph = False  # it ends where ranks gather, and where torch makes a mask

    def __init__(self, core: AttentionCore, mesh: DeviceMesh) -> None:
        super().__init__(dropout=core.dropout, backends=core.backends)
        self.ranks = mesh.size()
        self._part = SequencePart.here(mesh)
        self._group = mesh.get_group()

    @override
    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, scope: ForwardScope, *, first_head: int
    ) -> Tensor:
        if key.shape == value.shape:
            keys, values = gather_sequence(torch.stack((key, value)), self._group).unbind()
        else:
            both, width = torch.cat((key, value), -1), key.shape[-1]
            both = gather_sequence(both, self._group)
            keys, values = both[..., :width], both[..., width:]
        heads = (first_head, first_head + query.shape[1])
        kernels = self._kernels_for(query, keys, scope)
        if kernels[:1] == ("flex",):
            return self._flex(query, keys, values, scope, heads)
        chunk = query.shape[2] // 2
        mixed = []
        for first, index in zip((0, chunk), self._part.chunks, strict=True):
            seen = (index + 1) * chunk
            block = QueryBlock(queries=range(first, first + chunk), keys=seen)
            mask = None if scope.is_plain else scope.dense(heads, query.dtype, block)
            chunk_mixed = attention_kernels.scaled_dot_product(
                query[:, :, first : first + chunk],
                keys[:, :, :seen],
                values[:, :, :seen],
                kernels=kernels,
                mask=mask,
                dropout=self._dropped,
            )
            mixed.append(chunk_mixed)
        return torch.cat(mixed, dim=2)


def gather_sequence(
    part: Float[Tensor, "*batch part channels"], group: dist.ProcessGroup
) -> Float[Tensor, "*batch whole channels"]:
    """Put the parts of all ranks together in natural order; gradients go back to them."""
    parts = gather_rows(part[None], group)  # (ranks, ..., part, channels)
    early, late = parts.chunk(2, dim=-2)
    chunks = torch.cat((early, late.flip(0)))
    return chunks.movedim(0, -3).flatten(-3, -2)


def mean_over_parts(values: Tensor, mesh: DeviceMesh) -> Tensor:
    """Average what each rank of the axis has over its own tokens; all of them must call it."""
    if mesh.size() == 1:
        return values
    total = values.clone()
    dist.all_reduce(total, group=mesh.get_group())
    return total / mesh.size()
