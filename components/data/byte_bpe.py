"""Byte-level BPE: pairs of bytes merged by frequency, within the pieces that a pattern cuts.

The scheme is that of the GPT-2 report (Radford et al. 2019, section 2.2): every text can be
encoded, and without normalisation comes back byte for byte. Special pieces are read wherever a
text holds them as written, which is how the published runs prepared their data.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Engine
from tokenizers.trainers import BpeTrainer

from components.data.fast_bpe import Encode, open_fast
from components.data.files import REBUILD, replace_atomically
from components.data.tokenizer import Ids, encode_in_parts
from components.errors import RecipeError
from components.ranges import Count

FILE_NAME = "tokenizer.json"
NUM_BYTES = 256
SHORTEST_SPACE_RUN = 2

# Left open, the engine complains on standard error in every process forked after its first use.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


class ByteBPE:
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
        self._settings: dict[str, Any] = {
            "vocab_size": vocab_size,
            "normalization": normalization,
            "pattern": pattern,
            "first_pieces": list(first_pieces),
            "longest_space_run": longest_space_run,
            "last_pieces": list(last_pieces),
            "eod": eod,
        }
        self._first = list(first_pieces)
        runs = range(longest_space_run, SHORTEST_SPACE_RUN - 1, -1)
        self._last = [*(" " * length for length in runs), *last_pieces]
        self._special = frozenset([*first_pieces, *last_pieces])
        _check_pieces([*self._first, *self._last], eod, self._special)
        _check_pattern(pattern)
        self._check_size()
        self._engine: Engine | None = None
        self._fast: Encode | None = None

    @property
    def vocab_size(self) -> int:
        return int(self._settings["vocab_size"])

    @property
    def eod_id(self) -> int:
        eod = self._settings["eod"]
        if eod in self._first:
            return self._first.index(eod)
        return self.vocab_size - len(self._last) + self._last.index(eod)

    def settings(self) -> dict[str, Any]:
        """Give the settings back as the recipe wrote them, for manifests and hashes."""
        lists = {name: list(self._settings[name]) for name in ("first_pieces", "last_pieces")}
        return {**self._settings, **lists}

    def train(self, texts: Iterable[str], folder: Path) -> None:
        """Train on ``texts``, write ``tokenizer.json`` and use it.

        The same texts give the same bytes, in any order and on any number of threads.

        Raises:
            RecipeError: the text supports no vocabulary of this size.
        """
        engine = self._untrained()
        engine.train_from_iterator(texts, self._trainer())
        found = engine.get_vocab_size() + len(self._last)
        if found < self.vocab_size:
            raise RecipeError(
                "tokenizer.vocab_size",
                f"{self.vocab_size:,} pieces, but the text supports at most {found:,}",
                f"set tokenizer.vocab_size={found}, or raise data.tokenizer_sample_bytes",
            )
        engine.add_tokens([
            AddedToken(piece, normalized=False, special=piece in self._special)
            for piece in self._last
        ])
        with replace_atomically(folder / FILE_NAME) as file:
            file.write(engine.to_str(pretty=True).encode() + b"\n")
        self.load(folder)

    def load(self, folder: Path) -> None:
        """Read ``tokenizer.json`` from ``folder``.

        Raises:
            RecipeError: the file is missing, is no tokenizer, or has another vocabulary.
        """
        path = folder / FILE_NAME
        if not path.is_file():
            raise RecipeError(str(path), "there is no tokenizer", REBUILD)
        try:
            content = path.read_text("utf-8")
            engine = Engine.from_str(content)
        except Exception as error:  # the engine raises nothing more special
            raise RecipeError(str(path), f"is not a tokenizer ({error})", REBUILD) from error
        found = engine.get_vocab_size()
        if found != self.vocab_size:
            raise RecipeError(
                str(path),
                f"has {found:,} pieces, tokenizer.vocab_size is {self.vocab_size:,}",
                REBUILD,
            )
        if engine.token_to_id(self._settings["eod"]) != self.eod_id:
            raise RecipeError(
                str(path), f"does not give {self._settings['eod']} id {self.eod_id:,}", REBUILD
            )
        self._engine, self._fast = engine, open_fast(content, engine)

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Give each text its ids; no special piece is added.

        The texts are shared among threads, ``RAYON_NUM_THREADS`` of them where that is set.
        """
        return encode_in_parts(texts, self._encode, drops_space=False)

    def _encode(self, texts: list[str]) -> list[Ids]:
        assert self._engine is not None, "train or load first"
        if self._fast is not None:
            return self._fast(texts)
        encoded = self._engine.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        """Give the text of the ids; special pieces appear as they are written."""
        assert self._engine is not None, "train or load first"
        return self._engine.decode([int(token) for token in ids], skip_special_tokens=False)

    def _untrained(self) -> Engine:
        engine = Engine(models.BPE())
        if self._settings["normalization"] == "nfc":
            engine.normalizer = normalizers.NFC()
        engine.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(self._settings["pattern"]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ])
        engine.decoder = decoders.ByteLevel()
        return engine

    def _trainer(self) -> BpeTrainer:
        return BpeTrainer(
            vocab_size=self.vocab_size - len(self._last),
            special_tokens=self._first,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )

    def _check_size(self) -> None:
        needed = NUM_BYTES + len(self._first) + len(self._last)
        if self.vocab_size < needed:
            raise RecipeError(
                "tokenizer.vocab_size",
                f"{self.vocab_size:,} pieces, but bytes and special pieces take {needed:,}",
                f"set tokenizer.vocab_size to {needed} or more",
            )


def _check_pieces(pieces: list[str], eod: str, special: frozenset[str]) -> None:
    twice = sorted({piece for piece in pieces if pieces.count(piece) > 1})
    if twice or "" in pieces:
        raise RecipeError(
            "tokenizer.last_pieces",
            f"{twice[0]!r} is named twice" if twice else "a piece is empty",
            "give every special piece once",
        )
    if eod not in special:
        raise RecipeError(
            "tokenizer.eod",
            f"{eod!r} is none of the special pieces",
            f"name one of {', '.join(sorted(special)) or 'tokenizer.last_pieces'}",
        )


def _check_pattern(pattern: str) -> None:
    try:
        Regex(pattern)
    except Exception as error:  # the engine raises nothing more special
        raise RecipeError(
            "tokenizer.pattern", f"cannot be read: {error}", "correct the regular expression"
        ) from error
