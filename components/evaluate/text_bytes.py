"""How many bytes of text each token stands for: bits per byte compare across tokenizers.

Token files do not keep the bytes of their documents, but the pieces of a tokenizer spell them.
Counted is the text as the tokenizer reads it, after its normalization, in UTF-8. The end of a
document, which preparation puts there, is no text; other special pieces count as written.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from components.convert.tokenizer import open_engine, open_pieces
from components.data.byte_bpe import FILE_NAME as BYTE_BPE
from components.data.unigram import FILE_NAME as UNIGRAM

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
    return np.array([
        1 if pieces.is_byte(index) else _length(pieces.id_to_piece(index).replace(_SPACE, " "))
        for index in ids
    ])


def _of_byte_bpe(file: Path) -> npt.NDArray[np.int64]:
    """A learnt piece is spelled with one character a byte, an added one as it is in a text."""
    engine = open_engine(file)
    added = {index: token.content for index, token in engine.get_added_tokens_decoder().items()}
    lengths = {index: len(piece) for piece, index in engine.get_vocab().items()}
    lengths |= {index: _length(text) for index, text in added.items()}
    return np.array([lengths[index] for index in range(len(lengths))])


def _length(text: str) -> int:
    return len(text.encode())
