"""Bytes that are counted from ids are those of the text that was written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from components.data.unigram import Unigram
from components.evaluate.text_loss import read_text_bytes
from tests.components.convert.conftest import corpus, unigram_section, without_target

EOD = "<|endoftext|>"
TEXTS = [
    *("over the bridge", "x", "I'll see, 12345", "\n\nbegins with a line", "a  b   c\t\r\n d "),
    *("\u0939\u093f\u0928\u094d\u0926\u0940", "\U0001f600\U0001f44d\U0001f3fd", "\u6f22\u5b57"),
    *("the<extra>end", "<extra>", f"one{EOD}", "\x00\x7f\u2028"),
]
CUT = pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?\p{L}+"), "isolated")


def byte_level(*, prefix: bool = False, split: Any = None, normalizer: Any = None) -> Tokenizer:
    engine = Tokenizer(models.BPE())
    last = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=split is None)
    engine.pre_tokenizer = pre_tokenizers.Sequence([split, last]) if split else last
    engine.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=[EOD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    engine.train_from_iterator(["over the bridge the end"] * 9, trainer)
    engine.add_tokens([AddedToken("<extra>", normalized=False)])
    return engine


ENGINES = {
    "plain": byte_level(),
    "space before a text": byte_level(prefix=True),
    "cut by a pattern": byte_level(split=CUT),
    "mark before a text": byte_level(normalizer=normalizers.Prepend("\u2581")),
}


def count(folder: Path, documents: list[list[int]], eod_id: int) -> int:
    """Count all of the documents: an end of a document before the first is read alone."""
    text_bytes = read_text_bytes(folder, eod_id=eod_id)
    assert text_bytes is not None
    packed = np.array([eod_id, *(i for ids in documents for i in (*ids, eod_id))], np.int64)
    return sum(
        text_bytes.count_bytes(packed[start : start + 8][None])
        for start in range(0, len(packed), 7)
    )


def raw_bytes(texts: list[str]) -> int:
    """Count without the end of a document, which is no text even where it is spelled."""
    return sum(len(text.replace(EOD, "").encode()) for text in texts)


@pytest.mark.parametrize("name", ENGINES)
def test_bytes_of_a_byte_level_tokenizer(name: str, tmp_path: Path) -> None:
    engine = ENGINES[name]
    engine.save(str(tmp_path / "tokenizer.json"))
    # After a piece that a text spells, a prefix would come again.
    texts = [text for text in TEXTS if name in {"plain", "cut by a pattern"} or "<" not in text]
    for some in (texts, *([text] for text in texts)):
        ids = [engine.encode(text, add_special_tokens=False).ids for text in some]
        assert count(tmp_path, ids, 0) == raw_bytes(some)


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_bytes_of_a_sentencepiece_tokenizer(kind: str, prefix: bool, tmp_path: Path) -> None:
    section = unigram_section(1_200) | {
        "model_type": kind,
        "add_dummy_prefix": prefix,
        "normalization_rule_name": "identity",
    }
    tokenizer = Unigram(**without_target(section))
    tokenizer.train_on_texts(corpus(), tmp_path)
    texts = [
        *(text for text in TEXTS if "<" not in text),
        " begins with a space",
        *corpus()[:3],
    ]
    encoded = tokenizer.encode(texts)
    assert count(tmp_path, [ids.tolist() for ids in encoded], tokenizer.eod_id) == raw_bytes(
        texts
    )
