"""SentencePiece's tokenizers: unigram, as of OpenGPT-X's Teuken, or merges of characters.

Special pieces are user-defined symbols, as published: ``<eod>`` written in a text is read as
the piece itself. Line breaks and tabs are no part of any piece, but with ``byte_fallback``
their bytes are encoded: text comes back from its ids as it was after normalisation.
"""

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import sentencepiece

from components.data.files import REBUILD, replace_atomically
from components.data.tokenizer import Ids, Tokenizer, encode_in_parts
from components.data.tokenizer_file import open_pieces, trust
from components.errors import RecipeError
from components.ranges import Count, Share

FILE_NAME = "tokenizer.model"
UNIGRAM = "unigram"
SPACE = "\u2581"  # SentencePiece's mark
UNKNOWN_ID = 0
SHUFFLE_SEED = 0
ERRORS_ONLY = 2
# SentencePiece skips a whole training line that holds a tab, its own boundary mark.
LINE_ENDS = re.compile(r"[\r\n\t]+")

Splitting = Mapping[str, bool]  # where a piece may begin and end
Sentences = Mapping[str, Any]  # which lines are read: all if ``input_sentence_size`` is 0
SpecialPieces = Mapping[str, Any]  # the pieces after ``<unk>``, in the order of their ids
NESTED = {
    "splitting": "split_by_whitespace split_by_number split_digits "
    "allow_whitespace_only_pieces",
    "sentences": "max_sentence_length input_sentence_size shuffle_input_sentence "
    "train_extremely_large_corpus",
    "special_pieces": "bos eos pad eod num_placeholders",
}


class Unigram(Tokenizer):
    """Train, load and use one tokenizer; the arguments keep SentencePiece's own names.

    ``model_type: bpe`` merges pairs of pieces by frequency instead of choosing likely pieces.
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
        num_threads: Count,
        splitting: Splitting,
        sentences: Sentences,
        special_pieces: SpecialPieces,
        model_type: Literal["unigram", "bpe"] = "unigram",
    ) -> None:
        """Keep the settings; nothing is trained or read yet.

        Raises:
            RecipeError: a nested setting is missing or unknown.
        """
        self._keep(locals())
        if model_type == UNIGRAM:  # as the recipes say it: by silence
            del self._settings["model_type"]
        for name, keys in NESTED.items():
            if wrong := self._settings[name].keys() ^ keys.split():
                problem = f"missing or unknown: {', '.join(sorted(wrong))}"
                remedy = f"give exactly {', '.join(sorted(keys.split()))}"
                raise RecipeError(f"tokenizer.{name}", problem, remedy)
        bos, eos, pad = special_pieces["bos"], special_pieces["eos"], special_pieces["pad"]
        placeholders = range(special_pieces["num_placeholders"])
        roles = [bos, eos, pad, special_pieces["eod"]]  # documents may end with eos
        self._pieces = [*dict.fromkeys(roles)]
        self._pieces += [f"<placeholder_tok_{number}>" for number in placeholders]
        self._processor: Any = None

    @property
    def eod_id(self) -> int:
        return 1 + self._pieces.index(self._settings["special_pieces"]["eod"])

    def train(self, texts: Iterable[str], folder: Path) -> None:
        """Train on the lines of ``texts``, write ``tokenizer.model`` and use it.

        The same texts give the same bytes. Lines above ``max_sentence_length`` bytes go.

        Raises:
            RecipeError: too little text for this vocabulary, or a setting that is refused.
        """
        model, failures = io.BytesIO(), list[Exception]()
        settings = self.settings()
        del settings["special_pieces"]
        options = settings.pop("splitting") | settings.pop("sentences") | settings
        # The trainer's own log option comes too late for the warnings about its options.
        sentencepiece.set_min_log_level(ERRORS_ONLY)
        sentencepiece.set_random_generator_seed(SHUFFLE_SEED)
        try:
            sentencepiece.SentencePieceTrainer.Train(
                sentence_iterator=_lines(texts, failures),
                model_writer=model,
                model_type=options.pop("model_type", UNIGRAM),
                minloglevel=ERRORS_ONLY,
                unk_id=UNKNOWN_ID,
                user_defined_symbols=self._pieces,
                **options,
            )
        except RuntimeError as error:
            raise failures[0] if failures else self._explain(str(error)) from error
        trust(".model", model.getvalue())
        with replace_atomically(folder / FILE_NAME) as file:
            file.write(model.getvalue())
        self.load(folder)

    def load(self, folder: Path) -> None:
        """Read ``tokenizer.model`` from ``folder``.

        Raises:
            RecipeError: the file is missing, no SentencePiece model, or of another size.
        """
        path = folder / FILE_NAME
        if not path.is_file():
            raise RecipeError(str(path), "there is no tokenizer", REBUILD)
        processor = open_pieces(path, REBUILD)
        self._check_size(path, processor.piece_size())
        for key, found, stated in self._described(processor):
            if found != stated:
                problem = f"has {found!r}, by tokenizer.{key} it would be {stated!r}"
                raise RecipeError(str(path), problem, REBUILD)
        self._processor = processor

    def _described(self, processor: Any) -> Iterator[tuple[str, object, object]]:
        """Yield keys, what the model does, and what they state: exports follow them."""
        settings, last = self._settings, processor.piece_size() - 1
        eod = processor.id_to_piece(min(self.eod_id, last))
        yield "special_pieces.eod", eod, settings["special_pieces"]["eod"]
        has_bytes = any(map(processor.is_byte, range(last + 1)))
        yield "byte_fallback", has_bytes, settings["byte_fallback"]
        first, more = settings["add_dummy_prefix"], not settings["remove_extra_whitespaces"]
        stated = SPACE * (first + more) + "1" + SPACE * (1 + more) + "2"
        yield "add_dummy_prefix", processor.normalize(" 1  2"), stated

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

    def _explain(self, message: str) -> RecipeError:
        """Put SentencePiece's RuntimeError into words that name the setting to change."""
        if found := re.search(r"too high .*<= (\d+)", message):
            return self._too_few(int(found[1]))
        if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
            needed = f"special pieces, bytes and characters alone take {int(found[1]):,}"
            problem = f"{self.vocab_size:,} pieces, but {needed}"
            remedy = f"set tokenizer.vocab_size above {found[1]}, or lower "
            remedy += "tokenizer.character_coverage"
            return RecipeError("tokenizer.vocab_size", problem, remedy)
        if "sentences_.empty()" in message:
            return RecipeError(
                "tokenizer.sentences.max_sentence_length",
                "no line of the text is left to train on",
                "give text, or raise the limit (bytes a line) above the length of its lines",
            )
        reason = re.sub(r"^[A-Z_]+: (src/\S+ )?", "", message).strip()
        problem = f"SentencePiece refuses a setting: {reason}"
        return RecipeError("tokenizer", problem, "correct it")


def _lines(texts: Iterable[str], failures: list[Exception]) -> Iterator[str]:
    """Cut texts into lines; what goes wrong in reading them is put into ``failures``.

    SentencePiece turns any exception of its iterator into a RuntimeError of its own.
    """
    try:
        for text in texts:
            yield from filter(None, LINE_ENDS.split(text))
    except Exception as error:  # kept, whatever it is, and raised again
        failures.append(error)
        raise
