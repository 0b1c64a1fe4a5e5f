"""The loss of a model that knows only how frequent each token is.

It is the mark that a held-out loss must beat before anything can be called learnt.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from components.data.manifest import Manifest
from components.data.token_file import TokenFileRecord, open_token_file

BLOCK_TOKENS = 1 << 22


def unigram_losses(
    folder: Path, manifest: Manifest, shares: Mapping[str, float], vocab_size: int
) -> dict[str, float]:
    """Give each source's held-out cross-entropy in nats per token.

    The model is fitted to the training tokens as the mixture draws them: each source's
    frequencies times its share of all tokens, plus one for every id (Laplace's rule of
    succession). A source without a share is judged, but adds nothing to the fit.
    """
    total_tokens = sum(source.train.tokens for source in manifest.sources.values())
    counts = np.ones(vocab_size)
    for name, share in shares.items():
        train = manifest.sources[name].train
        counts += share * total_tokens / train.tokens * _counts(folder, train, vocab_size)
    log_probabilities = np.log(counts / counts.sum())
    return {
        name: _cross_entropy(folder, source.held_out, log_probabilities)
        for name, source in manifest.sources.items()
    }


def _cross_entropy(
    folder: Path, record: TokenFileRecord, log_probabilities: npt.NDArray[np.float64]
) -> float:
    counts = _counts(folder, record, len(log_probabilities))
    return float(-(counts @ log_probabilities) / record.tokens)


def _counts(folder: Path, record: TokenFileRecord, vocab_size: int) -> npt.NDArray[np.int64]:
    tokens = open_token_file(folder, record)
    counts = np.zeros(vocab_size, dtype=np.int64)
    for start in range(0, len(tokens), BLOCK_TOKENS):
        counts += np.bincount(tokens[start : start + BLOCK_TOKENS], minlength=vocab_size)
    return counts
