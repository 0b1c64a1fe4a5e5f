"""Normalization is idempotent and removes only controls and white space."""

import unicodedata

import pytest
from datatrove.data import Document
from hypothesis import given
from hypothesis import strategies as st

from components.config.schema.document_steps import Normalise
from data_prep.steps import NormaliseStep, normalize_text

ALL = Normalise(unicode_form="NFC", strip_line_ends=True, remove_controls=True)
FORMS = st.sampled_from(["NFC", "NFKC"])
NOISE = st.text(st.one_of(st.characters(), st.sampled_from(list(" \t\n\r\x00\x85\u0301é\xb4"))))


@given(NOISE, FORMS, st.booleans(), st.booleans())
def test_normalization_is_idempotent(text, form, strip, remove):
    settings = Normalise(unicode_form=form, strip_line_ends=strip, remove_controls=remove)
    once = normalize_text(text, settings)
    assert normalize_text(once, settings) == once


@given(NOISE)
def test_controls_and_surrogates_are_removed(text):
    left = normalize_text(text, ALL)
    assert not [c for c in left if unicodedata.category(c) in {"Cc", "Cs"} and c not in "\n\t"]
    left.encode()


@given(NOISE)
def test_visible_characters_are_kept(text):
    # Marks on both sides of a space are ordered only after the space is removed.
    before, after = (
        unicodedata.normalize("NFC", "".join(filter(_is_visible, each)))
        for each in (text, normalize_text(text, ALL))
    )
    assert after == before


def _is_visible(char: str) -> bool:
    return not char.isspace() and unicodedata.category(char) not in {"Cc", "Cs"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("e\u0301t\u00e9", "\u00e9t\u00e9"),
        ("one  \r\ntwo\t\rthree", "one\ntwo\nthree"),
        ("page\x0cnext\u2028line", "page\nnext\nline"),
        ("a\x00b\x1bc\ud800", "abc"),
        ("  indented\n\n\nthree lines below", "  indented\n\n\nthree lines below"),
    ],
)
def test_each_rule_has_its_effect(text, expected):
    assert normalize_text(text, ALL) == expected


def test_disabled_rules_have_no_effect():
    apart = Normalise(unicode_form="NFKC", strip_line_ends=False, remove_controls=False)
    assert normalize_text("ﬁ²", apart) == "fi2"
    assert normalize_text("ﬁ²", ALL) == "ﬁ²"
    bare = Normalise(unicode_form="NFC", strip_line_ends=False, remove_controls=False)
    assert normalize_text("a \r\n\x00b", bare) == "a \r\n\x00b"


def test_an_empty_document_is_removed():
    step = NormaliseStep(ALL)
    assert step(Document(text=" \x00\u2029", id="0")) == "normalise: empty"
    assert step(Document(text=" a", id="0")) is None
