"""The exported tokenizer gives the ids of training, also in ``transformers``."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from components.convert.tokenizer import convert_sentencepiece, count_pieces, write_tokenizer
from components.data.unigram import Unigram
from components.errors import RecipeError
from tests.components.convert.conftest import (
    Trained,
    corpus,
    llama,
    random_model,
    unigram_section,
    without_target,
)


@pytest.fixture(scope="module")
def reference(unigram: Trained) -> Any:
    return SentencePieceProcessor(model_file=str(unigram[0] / "tokenizer.model"))


@pytest.fixture(scope="module")
def converted(unigram: Trained) -> Tokenizer:
    return convert_sentencepiece(unigram[0] / "tokenizer.model", unigram[1])


ODD = [
    *("", " ", "  two before", "two after  ", "a\n\n\tb", "a   b", "\n"),
    *("1234567 0x3f 3,5", "\ufb01n \u00bd \u2122 \u212b", "e\u0301 \uac00", "\u65e5\u672c"),
    *("\U0001f600\U0001f600 \u00e9", "\u2581x", "<0x0A> as text", "<unk> as text", "<0x0"),
]


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def test_every_paragraph_of_24_languages_gets_the_same_ids(reference, converted):
    texts = corpus()
    paragraphs = [paragraph for text in texts for paragraph in text.split("\n\n")]
    assert len(texts) == 24
    assert len(paragraphs) == 24 * 12
    for text in (*texts, *paragraphs, *ODD):
        assert ids(converted, text) == reference.encode(text)
    for text in texts:
        encoded = reference.encode(text)
        decoded = converted.decode(encoded, skip_special_tokens=False)
        assert decoded == reference.decode(encoded) == unicodedata.normalize("NFKC", text)


def test_merged_pieces_are_converted_too(tmp_path: Path) -> None:
    section = unigram_section(1_200) | {"model_type": "bpe"}
    Unigram(**without_target(section)).train_on_texts(corpus(), tmp_path)
    model = tmp_path / "tokenizer.model"
    reference = SentencePieceProcessor(model_file=str(model))
    converted = convert_sentencepiece(model, section)
    for text in (*corpus(), *ODD):
        encoded = reference.encode(text)
        assert ids(converted, text) == encoded
        assert converted.decode(encoded, skip_special_tokens=False) == reference.decode(encoded)


def test_text_after_a_special_piece_starts_like_a_document(reference, converted):
    """Training encodes each document by itself and puts the piece between them."""
    eod, placeholder = map(reference.piece_to_id, ("<eod>", "<placeholder_tok_2>"))
    expected = [*reference.encode("Brot."), eod, *reference.encode("Wein."), placeholder]
    assert ids(converted, "Brot.<eod>Wein.<placeholder_tok_2>") == expected


def test_a_folder_loads_offline_with_the_same_ids(unigram, reference, export):
    section = llama() | {"vocab_size": 1_200, "padded_vocab_size": 1_216}
    model = random_model(section)
    folder = export(model, section, tokenizer=unigram[0], tokenizer_section=unigram[1])
    loaded = AutoTokenizer.from_pretrained(folder)
    for text in corpus():
        assert loaded(text)["input_ids"] == reference.encode(text)
    ended = [*reference.encode("Brot."), loaded.eos_token_id]
    assert loaded.decode(ended, skip_special_tokens=True) == "Brot."
    assert (loaded.bos_token, loaded.eos_token, loaded.pad_token) == (None, "<eod>", "<pad>")
    config = json.loads((folder / "config.json").read_text())
    assert [config[f"{role}_token_id"] for role in ("bos", "eos", "pad")] == [None, 4, 3]


@pytest.mark.parametrize(("kind", "fallback"), [("unigram", True), ("bpe", False)])
def test_a_model_with_control_pieces_gives_the_ids_of_training(kind, fallback, tmp_path):
    """As in Llama 2: SentencePiece encodes a control piece in a text as plain text."""
    (tmp_path / "out").mkdir()
    with (tmp_path / "tokenizer.model").open("wb") as written:
        SentencePieceTrainer.Train(
            sentence_iterator=iter("\n".join(corpus()[:6]).split("\n")),
            model_writer=written,
            vocab_size=1_200,
            model_type=kind,
            byte_fallback=fallback,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            character_coverage=0.999,
            minloglevel=2,
        )
    roles = {"bos": "<s>", "eos": "</s>", "pad": "</s>", "eod": "</s>", "num_placeholders": 0}
    section = unigram_section(1_200) | {"model_type": kind, "byte_fallback": fallback}
    section |= {"normalization_rule_name": "identity", "special_pieces": roles}
    tokenizer = Unigram(**without_target(section))
    tokenizer.load_file(tmp_path)
    write_tokenizer(tmp_path, section, tmp_path / "out", context_tokens=9_999)
    (tmp_path / "out" / "config.json").write_text('{"model_type": "llama"}')
    loaded = AutoTokenizer.from_pretrained(tmp_path / "out")
    texts = [*corpus()[:4], "two  spaces\t\n\n", "\u6f22\u5b57 \U0001f600", "<s>", "a <s> b"]
    encoded = [ids.tolist() for ids in tokenizer.encode(texts)]
    assert [loaded(text)["input_ids"] for text in texts] == encoded
    assert loaded.eos_token_id == tokenizer.eod_id == 2


def test_a_byte_level_tokenizer_is_copied(unigram, byte_bpe, tmp_path):
    source, section = byte_bpe
    found = write_tokenizer(source, section, tmp_path, context_tokens=64)
    copied, original = (folder / "tokenizer.json" for folder in (tmp_path, source))
    assert copied.read_bytes() == original.read_bytes()
    assert found == {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 3}
    assert [count_pieces(folder) for folder in (unigram[0], source)] == [1_200, 300]
    (tmp_path / "empty").mkdir()
    assert count_pieces(tmp_path / "empty") is None
    with pytest.raises(RecipeError, match=r"neither tokenizer\.model nor tokenizer\.json"):
        write_tokenizer(tmp_path / "empty", section, tmp_path, context_tokens=64)


@pytest.mark.parametrize(
    "change", [{"normalization_rule_name": "nmt_nfkc"}, {"remove_extra_whitespaces": True}]
)
def test_an_unsupported_normalization_is_refused(change, unigram):
    with pytest.raises(RecipeError, match="cannot be converted exactly"):
        convert_sentencepiece(unigram[0] / "tokenizer.model", unigram[1] | change)
