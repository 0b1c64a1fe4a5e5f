"""The loss of a model that knows only how frequent each token is.

It is the mark that a held-out loss must beat before anything can be called learnt.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from components.data.manifest import Manifest
from components.data.shards import MOST_OPEN, OpenFiles, ShardedTokens
from components.data.token_file import TokenFileRecord

BLOCK_TOKENS = 1 << 20
MOST_TOKENS = 1 << 27  # seconds to count; more would move no frequency that matters


def unigram_losses(
    folder: Path, manifest: Manifest, shares: Mapping[str, float], vocab_size: int
) -> dict[str, float]:
    """Give each source's held-out cross-entropy in nats per token.

    The model is fitted to the training tokens as the mixture draws them: each source's
    frequencies times its share of all tokens, plus one for every id (Laplace's rule of
    succession). A source without a share is judged, but adds nothing to the fit. Of a source
    above ``MOST_TOKENS``, blocks at equal distances stand for the whole.
    """
    total_tokens = sum(source.train_tokens for source in manifest.sources.values())
    counts = np.ones(vocab_size)
    for name, share in shares.items():
        found = _counts(folder, manifest.sources[name].train, vocab_size)
        counts += share * total_tokens / found.sum() * found
    log_probabilities = np.log(counts / counts.sum())
    return {
        name: _cross_entropy(folder, source.held_out, log_probabilities)
        for name, source in manifest.sources.items()
    }


def _cross_entropy(
    folder: Path,
    records: Sequence[TokenFileRecord],
    log_probabilities: npt.NDArray[np.float64],
) -> float:
    counts = _counts(folder, records, len(log_probabilities))
    return float(-(counts @ log_probabilities) / counts.sum())


def _counts(
    folder: Path, records: Sequence[TokenFileRecord], vocab_size: int
) -> npt.NDArray[np.int64]:
    files = OpenFiles(folder=folder, most_open=MOST_OPEN)
    tokens = ShardedTokens(records=records, files=files)
    counts = np.zeros(vocab_size, dtype=np.int64)
    stride = max(BLOCK_TOKENS, len(tokens) * BLOCK_TOKENS // MOST_TOKENS)
    for start in range(0, len(tokens), stride):
        counts += np.bincount(tokens.read(start, start + BLOCK_TOKENS), minlength=vocab_size)
    return counts
