"""Byte-level BPE: pairs of bytes merged by frequency, within the pieces that a pattern cuts.

The scheme is from the GPT-2 report (Radford et al. 2019, section 2.2). Every text can be
encoded, and without normalization it decodes to the same bytes. A special piece written in a
text is encoded as that piece; the published runs prepared their data this way.

`tokenizers` trains and defines the ids. fastokens encodes about ten times faster. It is used
only if it gives the same ids for test texts that tokenizers are known to treat differently.
"""

import os
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Engine
from tokenizers.trainers import BpeTrainer

from components.config.tokenizer_spec import ByteBPESpec
from components.data.files import REBUILD, replace_atomically
from components.data.tokenizer import Encode, Ids, Tokenizer, encode_in_parts
from components.data.tokenizer_file import (
    PROBES,
    check_end,
    check_engine,
    mark_checked,
    open_engine,
    refuse_panics,
)
from components.errors import RecipeError

try:
    import fastokens
except ImportError:  # no wheel for this machine: same results, but slower
    fastokens = None

FILE_NAME = "tokenizer.json"
NUM_BYTES = 256
SHORTEST_SPACE_RUN = 2

# If this is unset, the engine prints a warning in every process forked after its first use.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


class ByteBPE(Tokenizer):
    """Byte-level BPE tokenizer.

    The order of the ids is ``first_pieces``, the 256 bytes, the merges, runs of spaces from
    ``longest_space_run`` down to two (none if it is 0), ``last_pieces``. ``eod`` is one of the
    named pieces. ``pattern`` is a regular expression: its matches, and the text between two
    matches, are pieces, and no merge crosses a border between pieces.
    """

    def __init__(self, **settings: Any) -> None:
        """Store the settings of a `ByteBPESpec`; train and read nothing yet."""
        super().__init__(ByteBPESpec, settings)
        first_pieces, last_pieces = settings["first_pieces"], settings["last_pieces"]
        self._first = list(first_pieces)
        runs = range(settings["longest_space_run"], SHORTEST_SPACE_RUN - 1, -1)
        self._last = [*(" " * length for length in runs), *last_pieces]
        self._special = frozenset([*first_pieces, *last_pieces])
        self._check_pieces(settings["eod"])
        try:
            Regex(settings["pattern"])
        except Exception as error:  # the engine raises no narrower type
            problem, remedy = f"cannot be read: {error}", "correct the regular expression"
            raise RecipeError("tokenizer.pattern", problem, remedy) from error
        needed = NUM_BYTES + len(self._first) + len(self._last)
        if self.vocab_size < needed:
            problem = (
                f"{self.vocab_size:,} pieces, but bytes and special pieces need {needed:,}"
            )
            remedy = f"set tokenizer.vocab_size to {needed} or more"
            raise RecipeError("tokenizer.vocab_size", problem, remedy)
        self._engine: Engine | None = None
        self._fast: Encode | None = None

    @property
    def eod_id(self) -> int:
        eod = self._settings["eod"]
        if eod in self._first:
            return self._first.index(eod)
        return self.vocab_size - len(self._last) + self._last.index(eod)

    def train_on_texts(self, texts: Iterable[str], folder: Path) -> None:
        """Train on ``texts``, write ``tokenizer.json`` and load it.

        The same texts give the same bytes, in any order and on any number of threads. Too
        little text for this vocabulary is a RecipeError.
        """
        engine = Engine(models.BPE())
        if self._settings["normalization"] == "nfc":
            engine.normalizer = normalizers.NFC()
        engine.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(self._settings["pattern"]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ])
        engine.decoder = decoders.ByteLevel()
        trainer = BpeTrainer(
            vocab_size=self.vocab_size - len(self._last),
            special_tokens=self._first,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        engine.train_from_iterator(texts, trainer)
        size = engine.get_vocab_size() + len(self._last)
        if size < self.vocab_size:
            raise self._too_few(size)
        engine.add_tokens([
            AddedToken(piece, normalized=False, special=piece in self._special)
            for piece in self._last
        ])
        content = engine.to_str(pretty=True).encode() + b"\n"
        mark_checked(".json", content)
        with replace_atomically(folder / FILE_NAME) as file:
            file.write(content)
        self.load_file(folder)

    def load_file(self, folder: Path) -> None:
        """Read ``tokenizer.json`` from ``folder``; RecipeError if it does not match."""
        path = folder / FILE_NAME
        if not path.is_file():
            raise RecipeError(str(path), "does not exist", REBUILD)
        engine = open_engine(path, REBUILD)
        self._check_size(path, engine.get_vocab_size())
        eod = self._settings["eod"]
        if engine.token_to_id(eod) != self.eod_id:
            raise RecipeError(str(path), f"does not map {eod} to id {self.eod_id:,}", REBUILD)
        check_engine(str(path), engine)
        check_end(str(path), engine, eod)
        self._engine = engine
        self._fast = open_fast(path.read_text("utf-8"), engine)

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of each text, on ``RAYON_NUM_THREADS``; add no special pieces."""
        return encode_in_parts(texts, self._encode, drops_space=False)

    def _encode(self, texts: list[str]) -> list[Ids]:
        assert self._engine is not None, "train or load first"
        with refuse_panics(FILE_NAME):
            if self._fast is not None:
                return self._fast(texts)
            encoded = self._engine.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids; special pieces appear literally."""
        assert self._engine is not None, "train or load first"
        return self._engine.decode([int(token) for token in ids], skip_special_tokens=False)

    def _check_pieces(self, eod: str) -> None:
        pieces, special = [*self._first, *self._last], ", ".join(sorted(self._special))
        twice = sorted({piece for piece in pieces if pieces.count(piece) > 1})
        if twice or "" in pieces:
            problem = f"{twice[0]!r} is listed twice" if twice else "a piece is empty"
            raise RecipeError("tokenizer.last_pieces", problem, "list each special piece once")
        if eod not in self._special:
            remedy = f"set it to one of {special or 'tokenizer.last_pieces'}"
            raise RecipeError("tokenizer.eod", f"{eod!r} is not a special piece", remedy)


def open_fast(tokenizer_json: str, engine: Engine) -> Encode | None:
    """Open a tokenizer in fastokens; return None if that fails or its ids differ."""
    if fastokens is None:
        return None
    try:
        with refuse_panics(FILE_NAME):
            fast = fastokens.Tokenizer.from_json_str(tokenizer_json)
    except Exception:  # noqa: BLE001  # fastokens has no error type for unsupported tokenizers
        return None

    def encode_texts(texts: list[str]) -> list[Ids]:
        joined, offsets = fast.encode_batch_flat(texts, add_special_tokens=False)
        ids = np.frombuffer(joined, "<u4").astype(np.int32)
        return [ids[start:end] for start, end in pairwise(np.frombuffer(offsets, "<u8"))]

    pieces = [piece.content for piece in engine.get_added_tokens_decoder().values()]
    texts = ["", *PROBES, *(f"{piece} a{piece}{piece}b {piece}\n" for piece in pieces)]
    expected = engine.encode_batch_fast(texts, add_special_tokens=False)
    agreed = zip(encode_texts(texts), expected, strict=True)
    return (
        encode_texts if all(ids.tolist() == encoding.ids for ids, encoding in agreed) else None
    )
