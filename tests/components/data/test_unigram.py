import random
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from components.data.unigram import Unigram
from components.errors import RecipeError

SETTINGS = Path(__file__).resolve().parents[3] / "conf" / "tokenizer" / "unigram_eu24.yaml"


def make(**changes) -> Unigram:
    settings = yaml.safe_load(SETTINGS.read_text())
    assert settings.pop("_target_") == f"{Unigram.__module__}.{Unigram.__name__}"
    return Unigram(**{**settings, "vocab_size": 570, "num_threads": 2, **changes})


def words(seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    known = ["".join(draw.choices("abcdefgäß", k=draw.randint(2, 7))) for _ in range(80)]
    return [" ".join(draw.choices(known, k=12)) + "\n\tif 7:" for _ in range(300)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Unigram:
    tokenizer = make()
    tokenizer.train_on_texts(words(), tmp_path_factory.mktemp("tokenizer"))
    return tokenizer


def test_the_recipe_has_the_published_options():
    settings = yaml.safe_load(SETTINGS.read_text())
    expected: dict[str, Any] = {
        "vocab_size": 250_680,
        "character_coverage": 0.9999,
        "byte_fallback": True,
    }
    expected |= {"remove_extra_whitespaces": False, "normalization_rule_name": "nfkc"}
    assert {key: settings[key] for key in expected} == expected
    assert set(settings["splitting"].values()) == {True}
    assert settings["sentences"]["max_sentence_length"] == 4096
    assert settings["sentences"]["input_sentence_size"] == 0
    assert settings.pop("_target_") == "components.data.unigram.Unigram"
    assert Unigram(**settings).get_settings() == settings


def test_the_special_pieces_have_their_published_ids(trained):
    special = ["<s>", "</s>", "<pad>", "<eod>", "<placeholder_tok_0>", "<placeholder_tok_255>"]
    assert [trained.encode([piece])[0][-1] for piece in special] == [1, 2, 3, 4, 5, 260]
    assert trained.eod_id == 4
    assert trained.vocab_size == 570
    assert trained.decode([5, 4]) == "<placeholder_tok_0><eod>"
    (ids,) = trained.encode(["abc"])
    assert set(ids) & {0, 1, 2, 3, 4} == set()
    assert [each.tolist() for each in trained.encode(["", "abc"])] == [[], ids.tolist()]
    assert trained.encode([]) == []


@given(st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=40))
def test_decoded_text_is_the_normalized_text(trained, text):
    text = text.replace("\u2581", "")  # SentencePiece's character for a space
    (ids,) = trained.encode([text])
    assert max(ids, default=0) < trained.vocab_size
    if unicodedata.is_normalized("NFKC", text):
        assert trained.decode(ids) == text


def test_code_is_kept_and_compatibility_characters_are_normalized(trained):
    text = "def f():\n\tif 1:\n        return  2  # ää\n"
    assert trained.decode(trained.encode([text])[0]) == text
    assert trained.decode(trained.encode(["\ufb01n\u2168"])[0]) == "finIX"
    assert len(trained.encode(["1234"])[0]) - len(trained.encode(["1"])[0]) == 3


@pytest.mark.parametrize(("num_threads", "sample"), [(2, 0), (1, 200), (16, 200)])
def test_the_same_text_gives_the_same_bytes(tmp_path, num_threads, sample):
    sentences = {**make().get_settings()["sentences"], "input_sentence_size": sample}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        tokenizer = make(num_threads=num_threads, sentences=sentences)
        tokenizer.train_on_texts(words(), tmp_path / name)
    one, two = (tmp_path / name / "tokenizer.model" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_a_loaded_tokenizer_encodes_as_the_trained_one(tmp_path):
    trained, loaded = make(), make()
    trained.train_on_texts(words(), tmp_path)
    loaded.load_file(tmp_path)
    texts = words(seed=1)
    for ids, expected in zip(loaded.encode(texts), trained.encode(texts), strict=True):
        assert ids.tolist() == expected.tolist()


def test_training_and_loading_are_silent(tmp_path, capfd):
    tokenizer = make()
    tokenizer.train_on_texts(words(), tmp_path)
    tokenizer.load_file(tmp_path)
    tokenizer.encode(words())
    with pytest.raises(RecipeError):
        make(vocab_size=50_000).train_on_texts(words(), tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(RecipeError):
        tokenizer.load_file(tmp_path)
    assert capfd.readouterr() == ("", "")


def test_an_error_of_the_reader_is_raised_unchanged(tmp_path):
    def read():
        yield "abc"
        raise RecipeError("data.sources.a.files", "is not UTF-8")

    with pytest.raises(RecipeError, match=r"data\.sources\.a\.files: is not UTF-8"):
        make().train_on_texts(read(), tmp_path)


def test_an_error_about_too_many_pieces_names_the_largest_number(tmp_path):
    with pytest.raises(RecipeError, match=r"vocab_size: 9,000 pieces.*at most (\d+)") as caught:
        make(vocab_size=9000).train_on_texts(words(), tmp_path)
    largest = int(caught.value.remedy.split("=")[1].split(",")[0])
    make(vocab_size=largest).train_on_texts(words(), tmp_path)
    with pytest.raises(RecipeError, match="at most"):
        make(vocab_size=largest + 1).train_on_texts(words(), tmp_path)
    with pytest.raises(RecipeError, match=r"vocab_size: 300 pieces.*need 5\d\d\n  set"):
        make(vocab_size=300).train_on_texts(words(), tmp_path)


@pytest.mark.parametrize("texts", [[], [""], ["\n\t\n"], ["a" * 5000]])
def test_text_without_a_usable_line_is_refused(tmp_path, texts):
    message = r"tokenizer\.sentences\.max_sentence_length: every line of the text is longer"
    with pytest.raises(RecipeError, match=message):
        make().train_on_texts(texts, tmp_path)


@pytest.mark.parametrize(
    "changes", [{"normalization_rule_name": "nfxx"}, {"character_coverage": 0.5}]
)
def test_a_setting_that_sentencepiece_refuses_is_explained(tmp_path, changes):
    with pytest.raises(RecipeError, match=r"tokenizer: SentencePiece rejects a setting: .+"):
        make(**changes).train_on_texts(words(), tmp_path)


@pytest.mark.parametrize("group", ["splitting", "sentences", "special_pieces"])
def test_a_missing_or_unknown_nested_setting_is_named(group):
    settings = make().get_settings()[group]
    name = next(iter(settings))
    with pytest.raises(RecipeError, match=rf"tokenizer\.{group}: missing or unknown: speed\n"):
        make(**{group: {**settings, "speed": 1}})
    settings.pop(name)
    with pytest.raises(RecipeError, match=rf"missing or unknown: {name}\n  set exactly"):
        make(**{group: settings})


def test_a_missing_or_different_model_is_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"tokenizer\.model: does not exist\n  delete"):
        make().load_file(tmp_path)
    for content in (b"", b"not a model"):
        (tmp_path / "tokenizer.model").write_bytes(content)
        with pytest.raises(RecipeError, match=r"tokenizer\.model: is not a SentencePiece"):
            make().load_file(tmp_path)
    make().train_on_texts(words(), tmp_path)
    with pytest.raises(RecipeError, match=r"has 570 pieces, tokenizer\.vocab_size is 569"):
        make(vocab_size=569).load_file(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"add_dummy_prefix": False}, "but tokenizer.add_dummy_prefix requires '\u25811"),
        ({"remove_extra_whitespaces": True}, "requires '\u25811\u25812'"),
        ({"byte_fallback": False}, "has True, but tokenizer.byte_fallback"),
        ({"special_pieces": {"eod": "<end>"}}, "has '<eod>', but tokenizer.special_pieces.eod"),
    ],
)
def test_a_model_that_differs_from_the_recipe_is_refused(changes, message, tmp_path):
    make().train_on_texts(words(), tmp_path)
    if "special_pieces" in changes:
        pieces = make().get_settings()["special_pieces"]
        changes = {"special_pieces": pieces | changes["special_pieces"]}
    with pytest.raises(RecipeError, match=re.escape(message)):
        make(**changes).load_file(tmp_path)
