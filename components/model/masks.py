"""Attention masks by documents and windows, as tensors, functions or blocks.

Only each query's first visible and own position are stored; only CPUs use a dense mask.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad

BLOCK = 128  # queries and keys per block, the kernel's default


class CausalMask:
    """Causal mask of one microbatch, made once for all layers and stages of a rank.

    ``position_ids`` are the positions of this rank's queries in the whole sequence. Equal
    numbers in a row of ``documents`` (all tokens of the sequence) are a document. `fully_shard`
    would cast the tensors of a dataclass or tuple to bfloat16.
    """

    def __init__(
        self,
        *,
        position_ids: Int[Tensor, " queries"],
        documents: Int[Tensor, "batch whole"] | None,
    ) -> None:
        self.position_ids = position_ids
        self.starts = None if documents is None else first_positions(documents)[:, position_ids]
        self._blocks: dict[int, BlockMask] = {}
        self._narrower: dict[int, CausalMask] = {}

    def for_window(self, window: int) -> "CausalMask":
        """Return the mask in which a query sees at most ``window`` of these keys; cached."""
        if window not in self._narrower:
            firsts = (self.position_ids - window + 1).clamp(min=0)[None]
            narrower = CausalMask(position_ids=self.position_ids, documents=None)
            starts = firsts if self.starts is None else torch.maximum(self.starts, firsts)
            narrower.starts = starts
            self._narrower[window] = narrower
        return self._narrower[window]

    def build_dense_mask(
        self, queries: slice, keys: int
    ) -> Bool[Tensor, "#batch 1 queries keys"]:
        """Return which of the first ``keys`` positions the given queries see."""
        key = torch.arange(keys, device=self.position_ids.device)
        visible = (key <= self.position_ids[queries, None])[None]
        if self.starts is not None:
            visible = visible & (key >= self.starts[:, queries, None])
        return visible[:, None]

    def build_block_mask(self, keys: int) -> BlockMask:
        """Return the blocks of ``keys`` positions that are partly or fully visible.

        The minimum and maximum bounds of a block of queries determine them. If its positions
        have a gap, key blocks within the gap are included, too.
        """
        if keys not in self._blocks:
            self._blocks[keys] = self._find_blocks(keys)
        return self._blocks[keys]

    def _find_blocks(self, keys: int) -> BlockMask:
        # The kernel uses 32-bit integers.
        position_ids, starts = (
            self.position_ids.int(),
            None if self.starts is None else self.starts.int(),
        )
        last = _by_block(position_ids[None])
        first = torch.zeros_like(last) if starts is None else _by_block(starts)
        rows, length = first.shape[1], len(position_ids)
        block = BLOCK * torch.arange(-(-keys // BLOCK), device=position_ids.device)
        touched = (block + BLOCK > first.amin(-1, keepdim=True)) & (
            block <= last.amax(-1, keepdim=True)
        )
        full = (block >= first.amax(-1, keepdim=True)) & (
            block + BLOCK <= last.amin(-1, keepdim=True) + 1
        )
        if length % BLOCK:  # padding queries see no key
            full = full & (torch.arange(rows, device=position_ids.device) < rows - 1)[:, None]

        # Windows without documents are the same in all rows of a batch: store one row.
        shared_starts = None if starts is None or len(starts) > 1 else starts[0]

        def is_visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            causal = key <= position_ids[query]
            if starts is None:
                return causal
            start = starts[batch, query] if shared_starts is None else shared_starts[query]
            return causal & (key >= start)

        return BlockMask.from_kv_blocks(
            *_counted(touched & ~full),
            *_counted(full),
            BLOCK_SIZE=BLOCK,
            mask_mod=is_visible,
            seq_lengths=(length, keys),
        )


def first_positions(documents: Int[Tensor, "batch whole"]) -> Int[Tensor, "batch whole"]:
    """Return the first position of each token's document."""
    is_start = pad(documents[:, 1:] != documents[:, :-1], (1, 0))
    position_ids = torch.arange(documents.shape[1], device=documents.device)
    return torch.cummax(is_start * position_ids, dim=1).values


def _by_block(bounds: Int[Tensor, "batch queries"]) -> Int[Tensor, "batch blocks block"]:
    """Split bounds into blocks; pad the last block with the last query's bound."""
    missing = -bounds.shape[1] % BLOCK
    filled = torch.cat((bounds, bounds[:, -1:].expand(-1, missing)), dim=1)
    return filled.view(len(filled), -1, BLOCK)


def _counted(
    chosen: Bool[Tensor, "batch rows columns"],
) -> tuple[Int[Tensor, "batch 1 rows"], Int[Tensor, "batch 1 rows columns"]]:
    """Count the chosen columns of each row; list them before the other columns."""
    chosen = chosen[:, None].int()
    columns = chosen.argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), columns.int()
