"""Context parallelism: every rank of an axis has a part of each sequence.

With C ranks a sequence is cut into 2 C equal chunks, and rank r has chunks r and 2 C - 1 - r
(Llama 3, https://arxiv.org/abs/2407.21783, section 3.3.2): all ranks compute the same number of
causal query-key pairs. Attention gathers the keys and values of all ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from typing_extensions import override

from components.distributed.collectives import gather_rows
from components.model import attention_kernels
from components.model.attention import AttentionContext, AttentionCore, QueryBlock
from components.model.decoder import Decoder
from components.model.layer import collect_layers
from components.model.mixers.mixer import ShortConvolution, WholeSequence
from components.model.mixers.scan import Scan


def split_sequence(decoder: Decoder, mesh: DeviceMesh) -> None:
    """Apply context parallelism to a decoder or one of its stages; ``mesh`` has one axis.

    Tokens, targets and hidden states are then this rank's `SequencePart`. Documents still cover
    the whole sequence. The loss is the mean over this rank's tokens, and gradients are averaged
    as over data ranks. Call this before `split_tensors`.
    """
    if mesh.size() == 1:
        return
    decoder.position_ids = SequencePart.from_mesh(mesh).position_ids
    decoder.sequence_parts = mesh.size()
    for layer in collect_layers(decoder).values():
        if layer.attention is not None:
            layer.attention.core = ContextCore(layer.attention.core, mesh)
        if layer.mixer is not None:
            layer.mixer.sequence = SplitSequence(mesh)


@dataclass(frozen=True, kw_only=True)
class SequencePart:
    """The part of a sequence that one rank of a context axis holds: two chunks, in order."""

    rank: int
    ranks: int

    @classmethod
    def from_mesh(cls, mesh: DeviceMesh) -> Self:
        return cls(rank=mesh.get_local_rank(), ranks=mesh.size())

    @property
    def chunk_numbers(self) -> tuple[int, int]:
        """Return the two chunks' numbers: an early one with few keys, a late one with many."""
        return self.rank, 2 * self.ranks - 1 - self.rank

    def position_ids(self, length: int, device: torch.device) -> Int[Tensor, " length"]:
        chunk = length // 2
        return torch.cat([
            torch.arange(index * chunk, (index + 1) * chunk, device=device)
            for index in self.chunk_numbers
        ])

    def select_rows(self, rows: Int[Tensor, "batch whole"]) -> Int[Tensor, "batch part"]:
        """Return this rank's part of whole sequences; 2 x ranks must divide their length."""
        if self.ranks == 1:
            return rows
        count = 2 * self.ranks
        assert rows.shape[1] % count == 0, "the recipe's rules let only these through"
        chunks = rows.chunk(count, dim=1)
        return torch.cat([chunks[index] for index in self.chunk_numbers], dim=1)


class ContextCore(AttentionCore):
    """Attention from this rank's queries to the keys of all ranks.

    ``flex_attention`` processes all queries at once and skips fully masked blocks. Other
    kernels process one chunk of queries at a time, with the keys up to its end: chunk i of 2 C
    uses i + 1 chunks of keys, a rank's two chunks 2 C + 1. Both are balanced. On a CPU slopes,
    documents and windows need a dense mask of the same pairs.
    """

    is_fullgraph = False  # the graph breaks where ranks gather, and where torch makes a mask

    def __init__(self, core: AttentionCore, mesh: DeviceMesh) -> None:
        super().__init__(dropout=core.dropout, backends=core.backends, has_sinks=core.has_sinks)
        self.ranks = mesh.size()
        self._part = SequencePart.from_mesh(mesh)
        self._group = mesh.get_group()

    @override
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scope: AttentionContext,
        *,
        first_head: int,
        sinks: Tensor | None = None,
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
            return self._flex(query, keys, values, scope, heads, sinks)
        chunk = query.shape[2] // 2
        mixed = []
        for first, index in zip((0, chunk), self._part.chunk_numbers, strict=True):
            num_keys = (index + 1) * chunk
            block = QueryBlock(queries=range(first, first + chunk), keys=num_keys)
            mask = (
                None
                if scope.is_plain_causal and sinks is None
                else scope.build_dense_mask(heads, query.dtype, block)
            )
            chunk_mixed = attention_kernels.scaled_dot_product(
                query[:, :, first : first + chunk],
                keys[:, :, :num_keys],
                values[:, :, :num_keys],
                kernels=kernels,
                mask=mask,
                dropout=self._dropped,
                sinks=sinks,
            )
            mixed.append(chunk_mixed)
        return torch.cat(mixed, dim=2)


class SplitSequence(WholeSequence):
    """Convolutions and scans of a rank's two chunks, which continue those of other ranks.

    A convolution gets the last tokens of the chunk before. A scan changes a state linearly, to
    ``M S + B``: each rank scans its chunks from ``S = 0`` and ``S = 1``, all ranks gather M and
    B, and each rank scans its chunks again from the states that the earlier chunks give.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self._part = SequencePart.from_mesh(mesh)
        self._group = mesh.get_group()

    @override
    def convolve_tokens(
        self, convolution: ShortConvolution, tokens: Tensor, ages: Tensor | None
    ) -> Tensor:
        lags = convolution.taps.shape[1] - 1
        halves = tokens.chunk(2, 1)
        ends = self._gather(torch.stack([half[:, half.shape[1] - lags :] for half in halves]))
        starts = torch.cat((torch.zeros_like(ends[:1]), ends[:-1]))
        own_ages = (None, None) if ages is None else ages.chunk(2, 1)
        return torch.cat(
            [
                convolution(half, age, starts[number])
                for half, age, number in zip(
                    halves, own_ages, self._part.chunk_numbers, strict=True
                )
            ],
            1,
        )

    @override
    def scan_tokens(
        self, scan: Scan, tokens: Sequence[Tensor], resets: Tensor | None, *, chunk: int
    ) -> Tensor:
        halves = list(zip(*(tensor.chunk(2, -2) for tensor in tokens), strict=True))
        own_resets = (None, None) if resets is None else resets.chunk(2, 1)
        changes = [
            _scan_change(scan, half, starts, chunk)
            for half, starts in zip(halves, own_resets, strict=True)
        ]
        width = tokens[2].shape[-1]
        state, states = torch.zeros_like(changes[0][..., :width]), []
        for change in self._gather(torch.stack(changes)):
            states.append(state)
            state = change[..., width:] @ state + change[..., :width]
        outputs = [
            scan(*half, resets=starts, chunk=chunk, state=states[number])[0]
            for half, starts, number in zip(
                halves, own_resets, self._part.chunk_numbers, strict=True
            )
        ]
        return torch.cat(outputs, -2)

    def _gather(self, halves: Tensor) -> Tensor:
        """Gather something of each chunk, (2, ...), from all ranks in sequence order."""
        by_rank = gather_rows(halves[None].contiguous(), self._group)
        return torch.cat((by_rank[:, 0], by_rank[:, 1].flip(0)))


def _scan_change(
    scan: Scan, tokens: Sequence[Tensor], resets: Tensor | None, chunk: int
) -> Tensor:
    """Return what a scan of a chunk does to a state S: B and M of ``M S + B``, joined."""
    query, key, value, *others = tokens
    keys = key.shape[-1]
    start = torch.eye(keys, dtype=value.dtype, device=value.device)
    start = F.pad(start, (value.shape[-1], 0)).expand(*value.shape[:3], -1, -1)
    padded = F.pad(value, (0, keys))
    return scan(query, key, padded, *others, resets=resets, chunk=chunk, state=start)[1]


def gather_sequence(
    part: Float[Tensor, "*batch part channels"], group: dist.ProcessGroup
) -> Float[Tensor, "*batch whole channels"]:
    """Gather all ranks' parts into sequence order; gradients return to their ranks."""
    parts = gather_rows(part[None], group)  # (ranks, ..., part, channels)
    early, late = parts.chunk(2, dim=-2)
    chunks = torch.cat((early, late.flip(0)))
    return chunks.movedim(0, -3).flatten(-3, -2)


def mean_over_parts(values: Tensor, mesh: DeviceMesh) -> Tensor:
    """Average a rank's means over its tokens across the axis; all its ranks must call this."""
    if mesh.size() == 1:
        return values
    total = values.clone()
    dist.all_reduce(total, group=mesh.get_group())
    return total / mesh.size()
