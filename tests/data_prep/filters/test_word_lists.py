"""Word lists from a user's file."""

import json

import pytest

from components.errors import RecipeError
from data_prep.filters.text_ratios import read_word_lists

WHERE = "data.preparation.filters.text_ratios.stop_words"


def test_words_are_read_by_language_in_lower_case(tmp_path):
    file = tmp_path / "lists.json"
    file.write_text(json.dumps({"en": ["The", "of "], "fr": []}), "utf-8")
    assert read_word_lists(str(file), WHERE) == {"en": {"the", "of"}, "fr": frozenset()}


def test_without_a_file_there_are_no_words():
    assert read_word_lists("none", WHERE) == {}


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
        read_word_lists(str(file), WHERE)
    assert failure.value.path == WHERE
    assert '{"en": ["the", "of"]' in failure.value.remedy
