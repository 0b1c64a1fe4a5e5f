"""Loss over a stretch of text in bounded memory, and bits per byte of each token.

Token files do not keep the bytes of their documents, but the pieces of a tokenizer spell them.
Counted is the text as the tokenizer reads it, after its normalization, in UTF-8. The end of a
document, which preparation puts there, is no text; other special pieces count as written.

With N the summed loss of the predicted tokens in nats, T their number and B the bytes of their
text: loss = N / T, perplexity = exp(N / T), bits per byte = N / (B ln 2). The last is the one
to compare across tokenizers (Gao et al. 2020, "The Pile", arXiv 2101.00027, section 3.1).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from components.convert.tokenizer import open_engine, open_pieces
from components.data.byte_bpe import FILE_NAME as BYTE_BPE
from components.data.unigram import FILE_NAME as UNIGRAM
from components.engine.microbatch_forward import autocast_to, number_documents
from components.train.callbacks.metrics_logger import same_length

_SPACE = "\u2581"  # SentencePiece's mark for it


@dataclass(frozen=True, kw_only=True)
class TextBytes:
    """Bytes by id; ``prefix`` are those that the tokenizer itself puts before a document."""

    by_id: npt.NDArray[np.int64]
    prefix: int
    eod_id: int

    def of(self, rows: npt.NDArray[np.int64]) -> int:
        """Count the text of the predicted tokens, all but the first of each of ``rows``."""
        begun = int((rows[:, :-1] == self.eod_id).sum())
        return int(self.by_id[rows[:, 1:]].sum()) - self.prefix * begun


def read_text_bytes(folder: Path, *, eod_id: int, dummy_prefix: bool) -> TextBytes | None:
    """Read them from the tokenizer in ``folder``.

    ``None`` where there is no tokenizer, or one with a piece for text that it cannot spell,
    whose length nobody knows.
    """
    if (folder / UNIGRAM).is_file():
        by_id = _of_unigram(folder / UNIGRAM)
    elif (folder / BYTE_BPE).is_file():
        by_id = _of_byte_bpe(folder / BYTE_BPE)
    else:
        return None
    if by_id is None:
        return None
    by_id[eod_id] = 0
    return TextBytes(by_id=by_id, prefix=int(dummy_prefix), eod_id=eod_id)


def _of_unigram(file: Path) -> npt.NDArray[np.int64] | None:
    pieces = open_pieces(file)
    ids = range(pieces.piece_size())
    if not any(pieces.is_byte(index) for index in ids):
        return None
    texts = [pieces.id_to_piece(index).replace(_SPACE, " ") for index in ids]
    return np.array([
        1 if pieces.is_byte(index) else len(texts[index].encode()) for index in ids
    ])


def _of_byte_bpe(file: Path) -> npt.NDArray[np.int64]:
    """A learnt piece is spelled with one character a byte, an added one as it is in a text."""
    engine = open_engine(file)
    added = {index: token.content for index, token in engine.get_added_tokens_decoder().items()}
    lengths = {index: len(piece) for piece, index in engine.get_vocab().items()}
    lengths |= {index: len(text.encode()) for index, text in added.items()}
    return np.array([lengths[index] for index in range(len(lengths))])


@dataclass(frozen=True, kw_only=True)
class LossTally:
    """Sums of what was predicted, and at what loss; ``text_bytes`` is ``None`` if unknown."""

    nats: float = 0.0
    tokens: int = 0
    text_bytes: int | None = 0
    documents: int = 0

    def __add__(self, other: "LossTally") -> "LossTally":
        known = self.text_bytes is not None and other.text_bytes is not None
        return LossTally(
            nats=self.nats + other.nats,
            tokens=self.tokens + other.tokens,
            text_bytes=(self.text_bytes or 0) + (other.text_bytes or 0) if known else None,
            documents=self.documents + other.documents,
        )

    def figures(self) -> dict[str, Any]:
        """Give sums and quotients under the names of the result file; none without a token."""
        loss = self.nats / self.tokens if self.tokens else None
        bits = self.nats / math.log(2)
        return {
            "loss": loss,
            "perplexity": None if loss is None else math.exp(loss),
            "bits_per_byte": bits / self.text_bytes if self.text_bytes else None,
            "tokens": self.tokens,
            "bytes": self.text_bytes,
            "documents": self.documents,
        }


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Take the loss as training does, ``most_rows`` windows of one length at once.

    ``parts_documents`` keeps attention within a document.
    """

    decoder: nn.Module
    device: torch.device
    dtype: torch.dtype
    eod_id: int
    parts_documents: bool
    most_rows: int
    text_bytes: TextBytes | None

    @torch.no_grad()
    def tally(self, windows: Iterable[Tensor]) -> LossTally:
        """Predict all but the first token of neighbouring windows, [length + 1] each."""
        self.decoder.eval()
        total, last = LossTally(), self.eod_id
        for rows in same_length(windows, self.most_rows):
            total += self._tally(rows)
            last = int(rows[-1, -1])
        begun = LossTally(documents=int(last != self.eod_id))  # and cut off by the end
        return total + begun

    def _tally(self, rows: Tensor) -> LossTally:
        targets, tokens = rows[:, 1:], rows.to(self.device)
        inputs = tokens[:, :-1]
        documents = number_documents(inputs, self.eod_id) if self.parts_documents else None
        with autocast_to(self.dtype, self.device):
            loss: Tensor = self.decoder(inputs, documents=documents, targets=tokens[:, 1:])
        return LossTally(
            nats=loss.item() * targets.numel(),
            tokens=targets.numel(),
            text_bytes=None if self.text_bytes is None else self.text_bytes.of(rows.numpy()),
            documents=int((targets == self.eod_id).sum()),
        )
