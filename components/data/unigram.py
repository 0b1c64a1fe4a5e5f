"""The SentencePiece unigram tokenizer, with the trainer options of OpenGPT-X's Teuken.

Special pieces are user-defined symbols, as published: ``<eod>`` written in a text is read as
the piece itself. Line breaks and tabs are no part of any piece, but with ``byte_fallback``
their bytes are encoded: text comes back from its ids as it was after normalisation.
"""

import copy
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import sentencepiece

from components.data.files import REBUILD, replace_atomically
from components.data.tokenizer import Ids, check_vocab_size, encode_in_parts, too_few_pieces
from components.errors import RecipeError
from components.ranges import Count, Share

FILE_NAME = "tokenizer.model"
UNKNOWN_ID = 0
SHUFFLE_SEED = 0
ERRORS_ONLY = 2
# SentencePiece skips a whole training line that holds a tab, its own boundary mark.
LINE_ENDS = re.compile(r"[\r\n\t]+")


class SpecialPieces(TypedDict):
    """The pieces after ``<unk>``, in the order of their ids."""

    bos: str
    eos: str
    pad: str
    eod: str
    num_placeholders: int


class Splitting(TypedDict):
    """Where a piece may begin and end."""

    split_by_whitespace: bool
    split_by_number: bool
    split_digits: bool
    allow_whitespace_only_pieces: bool


class Sentences(TypedDict):
    """Which lines the trainer reads; ``input_sentence_size`` 0 reads all."""

    max_sentence_length: int
    input_sentence_size: int
    shuffle_input_sentence: bool
    train_extremely_large_corpus: bool


class Unigram:
    """Train, load and use one tokenizer; the arguments keep SentencePiece's own names.

    ``num_threads`` is a setting like the others: the trainer's sums are split by thread, so
    another number gives slightly other pieces.
    """

    def __init__(
        self,
        *,
        vocab_size: Count,
        character_coverage: Share,
        byte_fallback: bool,
        normalization_rule_name: str,
        remove_extra_whitespaces: bool,
        add_dummy_prefix: bool,
        required_chars: str,
        splitting: Splitting,
        sentences: Sentences,
        special_pieces: SpecialPieces,
        num_threads: Count,
    ) -> None:
        """Keep the settings; nothing is trained or read yet.

        Raises:
            RecipeError: a nested setting is missing or unknown.
        """
        _check_keys("splitting", splitting, Splitting)
        _check_keys("sentences", sentences, Sentences)
        _check_keys("special_pieces", special_pieces, SpecialPieces)
        self._settings: dict[str, Any] = {
            "vocab_size": vocab_size,
            "character_coverage": character_coverage,
            "byte_fallback": byte_fallback,
            "normalization_rule_name": normalization_rule_name,
            "remove_extra_whitespaces": remove_extra_whitespaces,
            "add_dummy_prefix": add_dummy_prefix,
            "required_chars": required_chars,
            "num_threads": num_threads,
            "splitting": dict(splitting),
            "sentences": dict(sentences),
            "special_pieces": dict(special_pieces),
        }
        bos, eos, pad = special_pieces["bos"], special_pieces["eos"], special_pieces["pad"]
        placeholders = range(special_pieces["num_placeholders"])
        self._pieces = [bos, eos, pad, special_pieces["eod"]]
        self._pieces += [f"<placeholder_tok_{number}>" for number in placeholders]
        self._eod = special_pieces["eod"]
        self._processor: Any = None

    @property
    def vocab_size(self) -> int:
        return int(self._settings["vocab_size"])

    @property
    def eod_id(self) -> int:
        return 1 + self._pieces.index(self._eod)

    def settings(self) -> dict[str, Any]:
        """Return the settings as the recipe wrote them, for manifests and hashes."""
        return copy.deepcopy(self._settings)

    def train(self, texts: Iterable[str], folder: Path) -> None:
        """Train on the lines of ``texts``, write ``tokenizer.model`` and use it.

        The same texts give the same bytes. Lines above ``max_sentence_length`` bytes are left
        out.

        Raises:
            RecipeError: the text supports no vocabulary of this size, or SentencePiece refuses
                a setting.
        """
        model = io.BytesIO()
        lines = _Lines(texts)
        settings = self.settings()
        del settings["special_pieces"]
        options = settings.pop("splitting") | settings.pop("sentences") | settings
        # The trainer's own log option comes too late for the warnings about its options.
        sentencepiece.set_min_log_level(ERRORS_ONLY)
        sentencepiece.set_random_generator_seed(SHUFFLE_SEED)
        try:
            sentencepiece.SentencePieceTrainer.Train(
                sentence_iterator=iter(lines),
                model_writer=model,
                model_type="unigram",
                minloglevel=ERRORS_ONLY,
                unk_id=UNKNOWN_ID,
                user_defined_symbols=self._pieces,
                **options,
            )
        except RuntimeError as error:
            raise lines.failure or _explain(str(error), self.vocab_size) from error
        with replace_atomically(folder / FILE_NAME) as file:
            file.write(model.getvalue())
        self.load(folder)

    def load(self, folder: Path) -> None:
        """Read ``tokenizer.model`` from ``folder``.

        Raises:
            RecipeError: the file is missing, is no SentencePiece model, or has another
                vocabulary size.
        """
        path = folder / FILE_NAME
        if not path.is_file():
            raise RecipeError(str(path), "there is no tokenizer", REBUILD)
        content = path.read_bytes()
        try:
            # An empty model would load, and only complain on standard error.
            processor = content and sentencepiece.SentencePieceProcessor(model_proto=content)
        except RuntimeError:
            processor = None
        if not processor:
            raise RecipeError(str(path), "is not a SentencePiece model", REBUILD)
        check_vocab_size(path, processor.piece_size(), self.vocab_size)
        self._processor = processor

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of each text, on one thread; no special piece is added."""
        prefix = self._settings["add_dummy_prefix"]
        return encode_in_parts(texts, self._encode, drops_space=prefix)

    def _encode(self, texts: list[str]) -> list[Ids]:
        assert self._processor is not None, "train or load first"
        ids: list[Ids] = self._processor.encode(texts, return_type="numpy", num_threads=1)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids; special pieces appear as they are written."""
        assert self._processor is not None, "train or load first"
        return str(self._processor.decode([int(token) for token in ids]))


class _Lines:
    """The lines of some texts; what goes wrong in reading them is kept.

    SentencePiece turns any exception of its iterator into a RuntimeError of its own.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = texts
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[str]:
        try:
            for text in self._texts:
                yield from filter(None, LINE_ENDS.split(text))
        except Exception as error:  # kept, whatever it is, and raised again
            self.failure = error
            raise


def _check_keys(name: str, given: Mapping[str, Any], wanted: type) -> None:
    known = set(wanted.__annotations__)
    if wrong := known ^ set(given):
        problem = f"missing or unknown: {', '.join(sorted(wrong))}"
        remedy = f"give exactly {', '.join(sorted(known))}"
        raise RecipeError(f"tokenizer.{name}", problem, remedy)


def _explain(message: str, vocab_size: int) -> RecipeError:
    """Put SentencePiece's RuntimeError into words that name the setting to change."""
    if found := re.search(r"too high .*<= (\d+)", message):
        return too_few_pieces(int(found[1]), vocab_size)
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        needed = f"special pieces, bytes and characters alone take {int(found[1]):,}"
        return RecipeError(
            "tokenizer.vocab_size",
            f"{vocab_size:,} pieces, but {needed}",
            f"set tokenizer.vocab_size above {found[1]}, or lower tokenizer.character_coverage",
        )
    if "sentences_.empty()" in message:
        return RecipeError(
            "tokenizer.sentences.max_sentence_length",
            "no line of the text is left to train on",
            "give text, or raise the limit (bytes a line) above the length of its lines",
        )
    reason = re.sub(r"^[A-Z_]+: (src/\S+ )?", "", message).strip()
    return RecipeError("tokenizer", f"SentencePiece refuses a setting: {reason}", "correct it")
