"""Windows of tokens and their loss masks; the only module of this package that imports torch.

Window ``k`` of a source, whose files are read as one sequence, with sequence length ``L`` is
``tokens[k L : k L + L + 1]``. Its first ``L`` tokens are inputs and its last ``L`` are targets.
So neighboring windows share one token, and each token is a target once.

Goldfish loss, https://arxiv.org/abs/2406.10209, section 3, as in swiss-ai's Megatron-LM
(``megatron/core/datasets/gpt_dataset.py``): the product of the h targets that end with a
target, modulo the size of a table of random numbers, selects an entry. The target is dropped if
that entry is below 1 / k. The product overflows 64 bits by design. It is 0 if a token of the h
is 0 or if the tokens together have 64 factors of two; then the first entry decides. The first
h - 1 targets of a sample always count.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.data import Dataset

from components.data.manifest import Manifest
from components.data.order import SampleId, SampleOrder
from components.data.packing import has_rows, open_rows
from components.data.run_order import RunOrder
from components.data.token_file import OpenFiles, ShardedTokens

DIGEST_MODULUS = 1 << 63
_TABLE_SIZE, _TABLE_SEED = 1_000_003, 2_971_215_073


def step_positions(*, first_sample: int, samples_per_step: int, rank: int, ranks: int) -> range:
    """Return the contiguous block of a step's positions that belongs to one data rank."""
    assert samples_per_step % ranks == 0, "a step's samples divide evenly among the data ranks"
    block = samples_per_step // ranks
    return range(first_sample + rank * block, first_sample + (rank + 1) * block)


def samples_digest(ids: Iterable[SampleId]) -> int:
    """Sum a 63-bit hash of each id, so that ranks can add their sums in any order."""
    total = 0
    for sample in ids:
        name = f"{sample.source}\0{sample.epoch}\0{sample.index}".encode()
        digest = hashlib.blake2b(name, digest_size=8).digest()
        total += int.from_bytes(digest, "little") % DIGEST_MODULUS
    return total % DIGEST_MODULUS


class PackedSamples(Dataset[torch.Tensor]):
    """Training samples by position in the sample order; see :class:`OpenFiles`."""

    def __init__(
        self,
        *,
        folder: Path,
        manifest: Manifest,
        order: SampleOrder | RunOrder,
        sequence_length: int,
        packed: bool = False,
    ) -> None:
        files = OpenFiles(folder=folder, vocab_size=manifest.tokenizer.vocab_size)
        self._rows = {
            name: open_rows(folder, name, source, length=sequence_length)
            for name, source in manifest.sources.items()
            if packed and has_rows(folder, name, sequence_length)
        }
        self._eod_id = manifest.tokenizer.eod_id
        self._tokens = {
            name: ShardedTokens(records=source.train, files=files)
            for name, source in manifest.sources.items()
        }
        self._order, self._sequence_length = order, sequence_length

    def __getitem__(self, position: int) -> torch.Tensor:
        """Read the sample at ``position``: int64 ``[sequence_length + 1]``."""
        sample, length = self._order[position], self._sequence_length
        tokens = self._tokens[sample.source]
        if (rows := self._rows.get(sample.source)) is not None:
            return torch.from_numpy(rows.read_row(sample.index, tokens, length, self._eod_id))
        start = sample.index * length
        return torch.from_numpy(tokens.read_tokens(start, start + length + 1))

    def sample_id(self, position: int) -> SampleId:
        return self._order[position]


class HeldOutWindows:
    """Held-out windows of each source: at most ``max_windows``, evenly spread."""

    def __init__(
        self, *, folder: Path, manifest: Manifest, sequence_length: int, max_windows: int
    ) -> None:
        size = manifest.tokenizer.vocab_size
        self._files, self._manifest = OpenFiles(folder=folder, vocab_size=size), manifest
        self._sequence_length, self._max_windows = sequence_length, max_windows

    @property
    def source_names(self) -> tuple[str, ...]:
        return tuple(self._manifest.sources)

    def iter_windows(self, source: str) -> Iterator[torch.Tensor]:
        """Yield int64 ``[sequence_length + 1]`` windows; the last may be shorter, down to 2."""
        records = self._manifest.sources[source].held_out
        tokens = ShardedTokens(records=records, files=self._files)
        length = self._sequence_length
        starts = range(0, len(tokens) - 1, length)
        count = min(len(starts), self._max_windows)
        for index in range(count):
            start = starts[index * len(starts) // count]
            yield torch.from_numpy(tokens.read_tokens(start, start + length + 1))


@dataclass(frozen=True, kw_only=True)
class LossMask:
    """Loss mask; ``one_in`` 0 drops no target for the tokens before it (no Goldfish loss).

    In ``padded`` rows an end-of-document id after another one is padding, which never counts.
    """

    one_in: int
    window_tokens: int
    after_eod: bool
    eod_id: int
    padded: bool = False

    @property
    def counts_all(self) -> bool:
        return self.after_eod and not self.one_in and not self.padded

    def __call__(self, rows: Int[Tensor, "*batch whole"]) -> Bool[Tensor, "*batch length"]:
        """Return which targets count; the targets are all tokens of ``rows`` but the first."""
        counted = torch.ones_like(rows[..., 1:], dtype=torch.bool)
        if not self.after_eod:
            counted &= rows[..., :-1] != self.eod_id
        if self.padded:
            counted &= (rows[..., :-1] != self.eod_id) | (rows[..., 1:] != self.eod_id)
        if self.one_in and counted.shape[-1] >= self.window_tokens:
            products = rows[..., 1:].unfold(-1, self.window_tokens, 1).prod(-1)
            drawn = _table().to(rows.device)[products % _TABLE_SIZE]
            counted[..., self.window_tokens - 1 :] &= drawn >= 1 / self.one_in
        return counted


def counted_further(
    counted: Bool[Tensor, "*batch length"],
    by: int,
    documents: Int[Tensor, "*batch length"] | None,
) -> Bool[Tensor, "*batch length"]:
    """Return for each position whether the target ``by`` positions later counts for it.

    Positions past the end of a row have no such target. If attention is limited to
    ``documents``, both positions must be in the same document: a token must not predict
    another document's tokens.
    """
    further = torch.zeros_like(counted)
    further[..., :-by] = counted[..., by:]
    if documents is not None:
        further[..., :-by] &= documents[..., by:] == documents[..., :-by]
    return further


@cache
def _table() -> Float[Tensor, " size"]:
    """Draw the random numbers on the CPU: generators of other devices differ."""
    generator = torch.Generator("cpu").manual_seed(_TABLE_SEED)
    return torch.rand(_TABLE_SIZE, generator=generator, device="cpu", dtype=torch.float32)
