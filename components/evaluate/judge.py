"""The loss of a model over a stretch of text, in one process and bounded memory.

With N the summed loss of the predicted tokens in nats, T their number and B the bytes of their
text: loss = N / T, perplexity = exp(N / T), bits per byte = N / (B ln 2). The last is the one
to compare across tokenizers (Gao et al. 2020, "The Pile", arXiv 2101.00027, section 3.1).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from components.evaluate.text_bytes import TextBytes
from components.train.compute import autocast_to, number_documents
from components.train.held_out import same_length


@dataclass(frozen=True, kw_only=True)
class Tally:
    """What was predicted, and at what loss: sums, so that those of several texts add up.

    ``documents`` are those of which a token was predicted; ``text_bytes`` is ``None`` where
    nobody can count them.
    """

    nats: float = 0.0
    tokens: int = 0
    text_bytes: int | None = 0
    documents: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        known = self.text_bytes is not None and other.text_bytes is not None
        return Tally(
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
    """Take the loss as training takes its held-out loss.

    ``parts_documents`` keeps attention within a document; ``most_rows`` windows of one length
    are computed at once.
    """

    decoder: nn.Module
    device: torch.device
    dtype: torch.dtype
    eod_id: int
    parts_documents: bool
    most_rows: int
    text_bytes: TextBytes | None

    @torch.no_grad()
    def tally(self, windows: Iterable[Tensor]) -> Tally:
        """Predict all but the first token of neighbouring windows, [length + 1] each."""
        self.decoder.eval()
        total, last = Tally(), self.eod_id
        for rows in same_length(windows, self.most_rows):
            total += self._tally(rows)
            last = int(rows[-1, -1])
        begun = Tally(documents=int(last != self.eod_id))  # and cut off by the end
        return total + begun

    def _tally(self, rows: Tensor) -> Tally:
        targets = rows[:, 1:]
        text = self.text_bytes
        return Tally(
            nats=self._mean_loss(rows.to(self.device)) * targets.numel(),
            tokens=targets.numel(),
            text_bytes=None if text is None else text.of(rows.numpy()),
            documents=int((targets == self.eod_id).sum()),
        )

    def _mean_loss(self, rows: Tensor) -> float:
        tokens = rows[:, :-1]
        documents = number_documents(tokens, self.eod_id) if self.parts_documents else None
        with autocast_to(self.dtype, self.device):
            loss: Tensor = self.decoder(tokens, documents=documents, targets=rows[:, 1:])
        return loss.item()
