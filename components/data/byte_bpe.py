"""Byte-level BPE: pairs of bytes merged by frequency, within the pieces that a pattern cuts.

The scheme is that of the GPT-2 report (Radford et al. 2019, section 2.2): every text can be
encoded, and without normalisation comes back byte for byte. Special pieces are read wherever a
text holds them as written, which is how the published runs prepared their data.

`tokenizers` trains and decides what the ids are; fastokens finds them some ten times sooner,
and is used if it gives the same ids for texts of what tokenizers are known to differ in.
"""

import os
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Engine
from tokenizers.trainers import BpeTrainer

from components.data.engine_check import PROBES, check_end, check_engine
from components.data.files import REBUILD, replace_atomically
from components.data.tokenizer import Encode, Ids, Tokenizer, encode_in_parts
from components.data.tokenizer_file import open_engine, refuse_panics, trust
from components.errors import RecipeError
from components.ranges import Count

try:
    import fastokens
except ImportError:  # a machine without a wheel: all is the same, but slower
    fastokens = None

FILE_NAME = "tokenizer.json"
NUM_BYTES = 256
SHORTEST_SPACE_RUN = 2

# Left open, the engine complains on standard error in every process forked after its first use.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


class ByteBPE(Tokenizer):
    """Train, load and use one tokenizer.

    Ids are ``first_pieces``, the 256 bytes, the merges, then runs of ``longest_space_run`` down
    to two spaces (none if it is 0), then ``last_pieces``; ``eod`` is one of the named pieces.
    ``pattern`` is a regular expression: what it matches, and what lies between two matches, are
    the pieces across whose borders nothing is merged.
    """

    def __init__(
        self,
        *,
        vocab_size: Count,
        normalization: Literal["none", "nfc"],
        pattern: str,
        first_pieces: list[str],
        longest_space_run: int,
        last_pieces: list[str],
        eod: str,
    ) -> None:
        """Keep the settings; nothing is trained or read yet.

        Raises:
            RecipeError: a piece named twice, an end of document that is none of the pieces, a
                pattern that cannot be read, or no room for the bytes.
        """
        self._keep(locals())
        self._first = list(first_pieces)
        runs = range(longest_space_run, SHORTEST_SPACE_RUN - 1, -1)
        self._last = [*(" " * length for length in runs), *last_pieces]
        self._special = frozenset([*first_pieces, *last_pieces])
        self._check_pieces(eod)
        try:
            Regex(pattern)
        except Exception as error:  # the engine raises nothing more special
            problem, remedy = f"cannot be read: {error}", "correct the regular expression"
            raise RecipeError("tokenizer.pattern", problem, remedy) from error
        needed = NUM_BYTES + len(self._first) + len(self._last)
        if vocab_size < needed:
            problem = f"{vocab_size:,} pieces, but bytes and special pieces take {needed:,}"
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

    def train(self, texts: Iterable[str], folder: Path) -> None:
        """Train on ``texts``, write ``tokenizer.json`` and use it.

        The same texts give the same bytes, in any order and on any number of threads.

        Raises:
            RecipeError: the text supports no vocabulary of this size.
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
        found = engine.get_vocab_size() + len(self._last)
        if found < self.vocab_size:
            raise self._too_few(found)
        engine.add_tokens([
            AddedToken(piece, normalized=False, special=piece in self._special)
            for piece in self._last
        ])
        content = engine.to_str(pretty=True).encode() + b"\n"
        trust(".json", content)
        with replace_atomically(folder / FILE_NAME) as file:
            file.write(content)
        self.load(folder)

    def load(self, folder: Path) -> None:
        """Read ``tokenizer.json`` from ``folder``.

        Raises:
            RecipeError: the file is missing, is no tokenizer, or has another vocabulary.
        """
        path = folder / FILE_NAME
        if not path.is_file():
            raise RecipeError(str(path), "there is no tokenizer", REBUILD)
        engine = open_engine(path, REBUILD)
        self._check_size(path, engine.get_vocab_size())
        eod = self._settings["eod"]
        if engine.token_to_id(eod) != self.eod_id:
            raise RecipeError(str(path), f"does not give {eod} id {self.eod_id:,}", REBUILD)
        check_engine(str(path), engine)
        check_end(str(path), engine, eod)
        self._engine = engine
        self._fast = open_fast(path.read_text("utf-8"), engine)

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of each text, on ``RAYON_NUM_THREADS``; no special piece is added."""
        return encode_in_parts(texts, self._encode, drops_space=False)

    def _encode(self, texts: list[str]) -> list[Ids]:
        assert self._engine is not None, "train or load first"
        with refuse_panics(FILE_NAME):
            if self._fast is not None:
                return self._fast(texts)
            encoded = self._engine.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids; special pieces appear as they are written."""
        assert self._engine is not None, "train or load first"
        return self._engine.decode([int(token) for token in ids], skip_special_tokens=False)

    def _check_pieces(self, eod: str) -> None:
        pieces, special = [*self._first, *self._last], ", ".join(sorted(self._special))
        twice = sorted({piece for piece in pieces if pieces.count(piece) > 1})
        if twice or "" in pieces:
            problem = f"{twice[0]!r} is named twice" if twice else "a piece is empty"
            raise RecipeError("tokenizer.last_pieces", problem, "give every special piece once")
        if eod not in self._special:
            remedy = f"name one of {special or 'tokenizer.last_pieces'}"
            raise RecipeError("tokenizer.eod", f"{eod!r} is none of the special pieces", remedy)


def open_fast(tokenizer_json: str, engine: Engine) -> Encode | None:
    """Read a tokenizer that ``engine`` has read; nothing where its ids would differ."""
    if fastokens is None:
        return None
    try:
        with refuse_panics(FILE_NAME):
            fast = fastokens.Tokenizer.from_json_str(tokenizer_json)
    except Exception:  # noqa: BLE001  # it names no error of its own for what it does not know
        return None

    def encode(texts: list[str]) -> list[Ids]:
        joined, offsets = fast.encode_batch_flat(texts, add_special_tokens=False)
        ids = np.frombuffer(joined, "<u4").astype(np.int32)
        return [ids[start:end] for start, end in pairwise(np.frombuffer(offsets, "<u8"))]

    pieces = [piece.content for piece in engine.get_added_tokens_decoder().values()]
    texts = ["", *PROBES, *(f"{one} a{one}{one}b {one}\n" for one in pieces)]
    expected = engine.encode_batch_fast(texts, add_special_tokens=False)
    agreed = zip(encode(texts), expected, strict=True)
    return encode if all(ids.tolist() == one.ids for ids, one in agreed) else None
