"""Masks by documents and windows: which keys a query sees, as tensors, functions or blocks.

A query sees the keys from the first place of its document, or of its window, up to its own
place. These two numbers a query are all that is kept; a dense mask is made for CPUs alone.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad

BLOCK = 128  # queries, and keys, of one block: the kernel's own size


class CausalMask:
    """The mask of one microbatch, made once for all layers and stages of a rank.

    ``places`` are those of the queries at hand in the whole sequence, whose tokens
    ``documents`` numbers: a document is a run of equal numbers. A plain class: `fully_shard`
    would cast the tensors of dataclasses and tuples to bfloat16.
    """

    def __init__(
        self, *, places: Int[Tensor, " queries"], documents: Int[Tensor, "batch whole"] | None
    ) -> None:
        self.places = places
        self.starts = None if documents is None else first_places(documents)[:, places]
        self._blocks: dict[int, BlockMask] = {}
        self._narrower: dict[int, CausalMask] = {}

    def within(self, window: int) -> "CausalMask":
        """Return the mask whose queries see ``window`` of these keys at most, made once."""
        if window not in self._narrower:
            firsts = (self.places - window + 1).clamp(min=0)[None]
            narrower = CausalMask(places=self.places, documents=None)
            starts = firsts if self.starts is None else torch.maximum(self.starts, firsts)
            narrower.starts = starts
            self._narrower[window] = narrower
        return self._narrower[window]

    def dense(self, queries: slice, keys: int) -> Bool[Tensor, "#batch 1 queries keys"]:
        """Say of some of the queries which of the first ``keys`` places they see."""
        key = torch.arange(keys, device=self.places.device)
        seen = (key <= self.places[queries, None])[None]
        if self.starts is not None:
            seen = seen & (key >= self.starts[:, queries, None])
        return seen[:, None]

    def blocks(self, keys: int) -> BlockMask:
        """Return the blocks of ``keys`` places with a visible pair, and those with all visible.

        They follow from the least and the greatest bound in a block of queries; no pair is
        looked at. Queries whose places leave a gap inside of a block get what lies in it, too.
        """
        if keys not in self._blocks:
            self._blocks[keys] = self._find_blocks(keys)
        return self._blocks[keys]

    def _find_blocks(self, keys: int) -> BlockMask:
        # The kernel's own numbers are 32 bits wide.
        places, starts = self.places.int(), None if self.starts is None else self.starts.int()
        last = _by_block(places[None])
        first = torch.zeros_like(last) if starts is None else _by_block(starts)
        rows, length = first.shape[1], len(places)
        block = BLOCK * torch.arange(-(-keys // BLOCK), device=places.device)
        seen = (block + BLOCK > first.amin(-1, keepdim=True)) & (
            block <= last.amax(-1, keepdim=True)
        )
        whole = (block >= first.amax(-1, keepdim=True)) & (
            block + BLOCK <= last.amin(-1, keepdim=True) + 1
        )
        if length % BLOCK:  # queries that are not there see nothing
            whole = whole & (torch.arange(rows, device=places.device) < rows - 1)[:, None]

        # Windows alone are the same in all rows of a batch, and so kept once.
        alike = None if starts is None or len(starts) > 1 else starts[0]

        def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            causal = key <= places[query]
            if starts is None:
                return causal
            start = starts[batch, query] if alike is None else alike[query]
            return causal & (key >= start)

        return BlockMask.from_kv_blocks(
            *_counted(seen & ~whole),
            *_counted(whole),
            BLOCK_SIZE=BLOCK,
            mask_mod=visible,
            seq_lengths=(length, keys),
        )


def first_places(documents: Int[Tensor, "batch whole"]) -> Int[Tensor, "batch whole"]:
    """Return the first place of each token's document."""
    begins = pad(documents[:, 1:] != documents[:, :-1], (1, 0))
    places = torch.arange(documents.shape[1], device=documents.device)
    return torch.cummax(begins * places, dim=1).values


def _by_block(bounds: Int[Tensor, "batch queries"]) -> Int[Tensor, "batch blocks block"]:
    """Cut in blocks, the last one filled up with the last query's bound."""
    missing = -bounds.shape[1] % BLOCK
    filled = torch.cat((bounds, bounds[:, -1:].expand(-1, missing)), dim=1)
    return filled.view(len(filled), -1, BLOCK)


def _counted(
    chosen: Bool[Tensor, "batch rows columns"],
) -> tuple[Int[Tensor, "batch 1 rows"], Int[Tensor, "batch 1 rows columns"]]:
    """Count what is chosen in each row, and list its columns before the others."""
    chosen = chosen[:, None].int()
    columns = chosen.argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), columns.int()
