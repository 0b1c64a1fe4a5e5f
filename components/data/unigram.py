"""SentencePiece tokenizers: unigram, as in OpenGPT-X's Teuken, or BPE on characters.

Special pieces are user-defined symbols, as in the published model: ``<eod>`` written in a text
is encoded as that piece. No trained piece contains a line break or a tab, but with
``byte_fallback`` their bytes are encoded, so decoding returns the normalized text.
"""

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from components.config.tokenizer_spec import UnigramSpec
from components.data.files import REBUILD, replace_atomically
from components.data.tokenizer import Ids, Tokenizer, encode_in_parts
from components.data.tokenizer_file import mark_checked, open_pieces
from components.errors import RecipeError

FILE_NAME = "tokenizer.model"
UNIGRAM = "unigram"
SPACE = "\u2581"  # SentencePiece's mark for a space
UNKNOWN_ID = 0
SHUFFLE_SEED = 0
ERRORS_ONLY = 2
# SentencePiece skips any training line that contains a tab, which it uses as a separator.
LINE_ENDS = re.compile(r"[\r\n\t]+")

# The keys of each nested section: where pieces may start and end; which lines are read (all if
# ``input_sentence_size`` is 0); the pieces after ``<unk>``, in the order of their ids.
NESTED = {
    "splitting": "split_by_whitespace split_by_number split_digits "
    "allow_whitespace_only_pieces",
    "sentences": "max_sentence_length input_sentence_size shuffle_input_sentence "
    "train_extremely_large_corpus",
    "special_pieces": "bos eos pad eod num_placeholders",
}


class Unigram(Tokenizer):
    """SentencePiece tokenizer; the settings keep SentencePiece's own names.

    ``model_type: bpe`` merges pairs of pieces by frequency instead of choosing likely pieces.
    ``num_threads`` affects the result: the trainer splits its sums by thread.
    """

    def __init__(self, **settings: Any) -> None:
        """Store the settings of a `UnigramSpec`; train and read nothing yet."""
        super().__init__(UnigramSpec, settings)
        if settings.get("model_type") == UNIGRAM:  # the default, which recipes may omit
            del self._settings["model_type"]
        for name, keys in NESTED.items():
            if wrong := self._settings[name].keys() ^ keys.split():
                problem = f"missing or unknown: {', '.join(sorted(wrong))}"
                remedy = f"set exactly {', '.join(sorted(keys.split()))}"
                raise RecipeError(f"tokenizer.{name}", problem, remedy)
        special = settings["special_pieces"]
        placeholders = range(special["num_placeholders"])
        roles = (special[role] for role in ("bos", "eos", "pad", "eod"))
        self._pieces = [*dict.fromkeys(roles)]  # eod may be the same piece as eos
        self._pieces += [f"<placeholder_tok_{number}>" for number in placeholders]
        self._processor: Any = None

    @property
    def eod_id(self) -> int:
        return 1 + self._pieces.index(self._settings["special_pieces"]["eod"])

    def train_on_texts(self, texts: Iterable[str], folder: Path) -> None:
        """Train on the lines of ``texts``, write ``tokenizer.model`` and load it.

        The same texts give the same bytes. Lines above ``max_sentence_length`` bytes are
        skipped. Too little text for this vocabulary is a RecipeError.
        """
        model, failures = io.BytesIO(), list[Exception]()
        settings = self.get_settings()
        del settings["special_pieces"]
        options = settings.pop("splitting") | settings.pop("sentences") | settings
        # The trainer's own log option takes effect after the warnings about its options.
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
        mark_checked(".model", model.getvalue())
        with replace_atomically(folder / FILE_NAME) as file:
            file.write(model.getvalue())
        self.load_file(folder)

    def load_file(self, folder: Path) -> None:
        """Read ``tokenizer.model`` from ``folder``; RecipeError if it does not match."""
        path = folder / FILE_NAME
        if not path.is_file():
            raise RecipeError(str(path), "does not exist", REBUILD)
        processor = open_pieces(path, REBUILD)
        self._check_size(path, processor.piece_size())
        for key, actual, expected in self._described(processor):
            if actual != expected:
                problem = f"has {actual!r}, but tokenizer.{key} requires {expected!r}"
                raise RecipeError(str(path), problem, REBUILD)
        self._processor = processor

    def _described(self, processor: Any) -> Iterator[tuple[str, object, object]]:
        """Yield settings keys with actual and expected values; exports rely on them."""
        settings, last = self._settings, processor.piece_size() - 1
        eod = processor.id_to_piece(min(self.eod_id, last))
        yield "special_pieces.eod", eod, settings["special_pieces"]["eod"]
        has_bytes = any(map(processor.is_byte, range(last + 1)))
        yield "byte_fallback", has_bytes, settings["byte_fallback"]
        first, more = settings["add_dummy_prefix"], not settings["remove_extra_whitespaces"]
        normalized = SPACE * (first + more) + "1" + SPACE * (1 + more) + "2"
        yield "add_dummy_prefix", processor.normalize(" 1  2"), normalized

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of each text, on one thread; add no special pieces."""
        prefix = self._settings["add_dummy_prefix"]
        return encode_in_parts(texts, self._encode, drops_space=prefix)

    def _encode(self, texts: list[str]) -> list[Ids]:
        assert self._processor is not None, "train or load first"
        ids: list[Ids] = self._processor.encode(texts, return_type="numpy", num_threads=1)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids; special pieces appear literally."""
        assert self._processor is not None, "train or load first"
        return str(self._processor.decode([int(token) for token in ids]))

    def _explain(self, message: str) -> RecipeError:
        """Turn SentencePiece's RuntimeError into an error that names the setting to change."""
        if match := re.search(r"too high .*<= (\d+)", message):
            return self._too_few(int(match[1]))
        if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
            needed = f"special pieces, bytes and characters need {int(match[1]):,}"
            problem = f"{self.vocab_size:,} pieces, but {needed}"
            remedy = f"set tokenizer.vocab_size above {match[1]}, or lower "
            remedy += "tokenizer.character_coverage"
            return RecipeError("tokenizer.vocab_size", problem, remedy)
        if "sentences_.empty()" in message:
            return RecipeError(
                "tokenizer.sentences.max_sentence_length",
                "every line of the text is longer than the limit",
                "add text, or raise the limit (bytes per line) above the length of the lines",
            )
        reason = re.sub(r"^[A-Z_]+: (src/\S+ )?", "", message).strip()
        problem = f"SentencePiece rejects a setting: {reason}"
        return RecipeError("tokenizer", problem, "correct the setting")


def _lines(texts: Iterable[str], failures: list[Exception]) -> Iterator[str]:
    """Yield the lines of texts; append an exception from ``texts`` to ``failures``.

    SentencePiece replaces any exception of its iterator with its own RuntimeError.
    """
    try:
        for text in texts:
            yield from filter(None, LINE_ENDS.split(text))
    except Exception as error:  # any error: train() raises it again
        failures.append(error)
        raise
