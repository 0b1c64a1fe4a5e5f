"""Shares of a text equal plain counts; limits of each language; word lists."""

import json
import re
from collections import Counter
from typing import Any, Literal

import pytest
from datatrove.data import Document
from hypothesis import given
from hypothesis import strategies as st

from components.config.schema.document_steps import Ratios
from components.errors import RecipeError
from data_prep.filters import text_ratios
from data_prep.filters.text_ratios import TextRatioFilter, read_word_lists
from data_prep.sources import library_docs

WHERE = "data.preparation.filters.text_ratios"
LINKS = re.compile("http|www|//")
SOURCE = (
    "The baker opened the door before dawn, lit the oven and began to count the loaves that "
    "the village would need. Nobody had told her about the flood, but the river was already "
    "at the wheel of the mill and the miller stood on the bridge with a lamp in his hand."
)
# Every mark once, so that no span of ten characters repeats.
MARKS = " ".join(chr(point) for point in range(0x2190, 0x2210))


@given(st.text(st.sampled_from("ab \n.é面"), max_size=80), st.integers(1, 10))
def test_character_repetition_is_the_plain_count(text, size):
    assert text_ratios.character_repetition(text, size) == pytest.approx(repetition(text, size))


def repetition(text: str, size: int) -> float:
    spans = Counter(text[i : i + size] for i in range(len(text) - size + 1))
    counts = sorted(spans.values(), reverse=True)
    most = min(int(len(counts) ** 0.5), sum(count > 1 for count in counts))
    return sum(counts[:most]) / sum(counts) if counts else 0


@pytest.mark.long
def test_character_repetition_is_the_plain_count_on_long_texts():
    for document in library_docs()[:20]:
        found = text_ratios.character_repetition(document.text, 10)
        assert found == pytest.approx(repetition(document.text, 10))


@given(st.lists(st.sampled_from("abc"), max_size=40), st.integers(1, 7))
def test_word_repetition_is_the_plain_count(words, size):
    spans = [" ".join(words[i : i + size]) for i in range(len(words) - size + 1)]
    repeated = sum(spans.count(span) > 1 for span in spans)
    expected = repeated / len(spans) if spans else 0
    assert text_ratios.word_repetition(words, size) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        *(("", 0), ("ab", 0), ("٣क", 0)),
        *(("a b", 1 / 3), ("(a1!)", 0.8), ("€🙂½a", 0.75), ("का", 0.5)),
    ],
)
def test_special_characters_equal_the_published_list(text, share):
    assert text_ratios.special_characters(text) == pytest.approx(share)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("go to http://x.eu/a or (www.y.eu)\nnow", "go to or now"),
        ("short averyveryverylongword here", "short here"),
        ("short (((twelvemarks))) here", "short (((twelvemarks))) here"),
        ("short ------------------ here", "short here"),
        ("marks // alone stay", "marks // alone stay"),
    ],
)
def test_links_and_long_words_are_dropped(text, kept):
    assert text_ratios.clean_text(text, 12, LINKS) == kept


def test_no_word_is_dropped_without_a_limit():
    text = "go to http://x.eu/a\n averyveryverylongword"
    expected = "go to http://x.eu/a averyveryverylongword"
    assert text_ratios.clean_text(text, "none", LINKS) == expected


@given(st.lists(st.text(st.sampled_from('ab."-1é'), min_size=1, max_size=8)))
def test_marks_around_words_are_stripped(tokens):
    stripped = [token.strip('."-1') for token in tokens]
    limits = _limits("spaces")
    found = text_ratios.cut_words(" ".join(tokens), limits)
    assert found == [word for word in stripped if word]


def _limits(words: Literal["spaces", "spaces_and_pairs", "characters_and_pairs"]) -> Ratios:
    counts = {"min_words": 1, "max_words": 10, "character_ngram": 3, "word_ngram": 2}
    shares: dict[str, Any] = {
        "character_repetition": 0.5,
        "word_repetition": 0.5,
        "special_characters": 0.5,
    }
    shares |= {"stop_words": 0.3, "flagged_words": 0.1}
    return Ratios(words=words, longest_word="none", **counts, **shares)


def test_pairs_of_words_may_be_on_a_list():
    chinese, spaced = _limits("characters_and_pairs"), _limits("spaces_and_pairs")
    words = text_ratios.cut_words("面包师。在 A", chinese)
    assert words == ["面", "包", "师", "在", "a"]
    for cut, listed, limits, share in (
        (words, {"面包", "在"}, chinese, 2 / 5),
        (["ban", "ngay", "x"], {"ban ngay"}, spaced, 1 / 3),
        (["ban", "ngay"], {"ban ngay"}, _limits("spaces"), 0),
        (["a", "a"], {"a", "a a"}, spaced, 1),
    ):
        found = text_ratios.compute_listed_share(cut, listed, limits)
        assert found == pytest.approx(share)


@pytest.fixture
def judge(preset, tmp_path):
    """Apply the limits of ROOTS and two small lists."""
    lists = tmp_path / "lists.json"
    lists.write_text(json.dumps({"en": ["the", "and", "to", "that", "a", "had"]}), "utf-8")
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps({"en": ["grr"]}), "utf-8")
    settings = preset("roots").filters.text_ratios.model_copy(
        update={"stop_words": str(lists), "flagged_words": str(bad)}
    )
    step = TextRatioFilter(settings, where=WHERE)

    def call(text: str, language: str = "en") -> str | None:
        return step(Document(text=text, id="0", metadata={"language": language}))

    return call


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (SOURCE[:85], "17 words, not 20 to 100000"),
        (SOURCE + " abcdefghij" * 8, "character repetition 0.2"),
        (SOURCE + " one two six ten eel" + " " + SOURCE, "word repetition 0.9"),
        (SOURCE + MARKS, "special characters 0.6"),
        (SOURCE.replace("the", "die").replace("The", "Die"), "stop words 0."),
        (SOURCE + " grr", "flagged words 0.0"),
        (SOURCE, None),
    ],
)
def test_each_limit_removes_a_text_beyond_it(text, reason, judge):
    found = judge(text)
    assert (found or "").startswith(f"text_ratios: {reason}" if reason else "")
    assert (found is None) == (reason is None)


def test_a_language_has_its_own_limits_and_the_others_the_default(judge):
    short = SOURCE[:85]  # 17 words: enough for Spanish, French and the default, not for English
    assert judge(short, "en") is not None
    assert [judge(short, language) for language in ("es", "fr", "sw")] == [None] * 3
    assert judge(short, "hi") == "text_ratios: 17 words, not 38 to 100000"


def test_without_lists_the_shares_have_no_limit(preset):
    step = TextRatioFilter(preset("roots").filters.text_ratios, where=WHERE)
    text = SOURCE.replace("the", "die") + " grr"
    assert step(Document(text=text, id="0", metadata={"language": "en"})) is None


STOP_WORDS = "data.preparation.filters.text_ratios.stop_words"


def test_words_are_read_by_language_in_lower_case(tmp_path):
    file = tmp_path / "lists.json"
    file.write_text(json.dumps({"en": ["The", "of "], "fr": []}), "utf-8")
    assert read_word_lists(str(file), STOP_WORDS) == {"en": {"the", "of"}, "fr": frozenset()}
    assert read_word_lists("none", STOP_WORDS) == {}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: .*No such file"),
        ("{", "cannot be read: is not JSON: Expecting property name"),
        ("[" * 200_000, "cannot be read: is nested deeper"),
        ('["the"]', "is not a JSON object"),
        ('{"en": "the"}', "'en' is not a list of words"),
        ('{"en": ["the"], "fr": [1]}', "'fr' is not a list of words"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused(tmp_path, content, problem):
    file = tmp_path / "lists.json"
    if content is not None:
        file.write_text(content, "utf-8")
    with pytest.raises(RecipeError, match=problem) as failure:
        read_word_lists(str(file), STOP_WORDS)
    assert failure.value.path == STOP_WORDS
    assert '{"en": ["the", "of"]' in failure.value.remedy
