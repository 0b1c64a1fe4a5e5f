"""Windows of tokens, and which of them training counts; the only torch of this package.

Window ``k`` of a source's tokens, all its files in a row, with sequence length ``L`` is
``tokens[k L : k L + L + 1]``: its first ``L`` tokens are read and its last ``L`` predicted, so
neighbours share one token and each token is predicted once.

Goldfish loss, https://arxiv.org/abs/2406.10209, section 3, is as swiss-ai's Megatron-LM has it
(``megatron/core/datasets/gpt_dataset.py``): a target is dropped where a table of random numbers
has less than 1 / k at the product of the h targets that end with it, modulo the table's size.
The product overflows 64 bits, and is part of the mask. It is 0 where a token of the window is,
or where its tokens have 64 factors of two together: then the table's first number decides. The
first h - 1 targets of a sample always count.
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
    """Return one data rank's contiguous block of the positions of one step."""
    assert samples_per_step % ranks == 0, "a step's samples divide evenly among the data ranks"
    block = samples_per_step // ranks
    return range(first_sample + rank * block, first_sample + (rank + 1) * block)


def samples_digest(ids: Iterable[SampleId]) -> int:
    """Add up a 63-bit hash of each id, so that ranks can add up theirs in any order."""
    total = 0
    for sample in ids:
        name = f"{sample.source}\0{sample.epoch}\0{sample.index}".encode()
        digest = hashlib.blake2b(name, digest_size=8).digest()
        total += int.from_bytes(digest, "little") % DIGEST_MODULUS
    return total % DIGEST_MODULUS


class PackedSamples(Dataset[torch.Tensor]):
    """Training samples by their position in the order; see :class:`OpenFiles`."""

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
            return torch.from_numpy(rows.read(sample.index, tokens, length, self._eod_id))
        start = sample.index * length
        return torch.from_numpy(tokens.read(start, start + length + 1))

    def sample_id(self, position: int) -> SampleId:
        return self._order[position]


class HeldOutWindows:
    """Read the held-out text of each source: at most ``max_windows``, spread evenly over it."""

    def __init__(
        self, *, folder: Path, manifest: Manifest, sequence_length: int, max_windows: int
    ) -> None:
        size = manifest.tokenizer.vocab_size
        self._files, self._manifest = OpenFiles(folder=folder, vocab_size=size), manifest
        self._sequence_length, self._max_windows = sequence_length, max_windows

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(self._manifest.sources)

    def windows(self, source: str) -> Iterator[torch.Tensor]:
        """Yield int64 ``[sequence_length + 1]``; the last may be shorter, down to 2."""
        records = self._manifest.sources[source].held_out
        tokens = ShardedTokens(records=records, files=self._files)
        length = self._sequence_length
        starts = range(0, len(tokens) - 1, length)
        count = min(len(starts), self._max_windows)
        for index in range(count):
            start = starts[index * len(starts) // count]
            yield torch.from_numpy(tokens.read(start, start + length + 1))


@dataclass(frozen=True, kw_only=True)
class LossMask:
    """Choose targets; ``one_in`` 0 drops none for what precedes it.

    In ``padded`` rows ends of documents behind an end are padding, which never counts.
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
        """Say for each target, all tokens of ``rows`` but the first, whether it counts."""
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
    """Say of each position whether the target of that which is ``by`` further counts for it.

    Behind the end of a row there is none. Where attention knows ``documents``, all that is
    between the two must be of one: of another's tokens nothing is to be predicted.
    """
    further = torch.zeros_like(counted)
    further[..., :-by] = counted[..., by:]
    if documents is not None:
        further[..., :-by] &= documents[..., by:] == documents[..., :-by]
    return further


@cache
def _table() -> Float[Tensor, " size"]:
    """Draw the numbers on the CPU, whose generator is not other devices'."""
    generator = torch.Generator("cpu").manual_seed(_TABLE_SEED)
    return torch.rand(_TABLE_SIZE, generator=generator, device="cpu", dtype=torch.float32)
