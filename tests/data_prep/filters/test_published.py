"""Verdicts equal those of datatrove's filters, called with datatrove's own names."""

import random
from typing import Any

import pytest
from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.filters.base_filter import get_filter_result

from components.config.schema.document_steps import (
    C4,
    Filters,
    FineWeb,
    GopherQuality,
    GopherRepetition,
)
from data_prep.filters.published import PUBLISHED, load_word_tokenizer, published_filter
from data_prep.sources import library_source

SHARES = [0.05, 0.1, 0.2, 0.4, 0.8]
TOPS = [((2, share), (3, 0.3)) for share in SHARES]
REPEATS = [((5, share), (6, 0.5)) for share in SHARES]
LIMITS = [0.01, 0.1, 0.3]
FLAGS = [True, False]
CLASSES: dict[str, tuple[Any, Any]] = {
    "gopher_repetition": (GopherRepetition, GopherRepetitionFilter),
    "gopher_quality": (GopherQuality, GopherQualityFilter),
    "c4": (C4, C4QualityFilter),
    "fineweb": (FineWeb, FineWebQualityFilter),
}
# The name of each setting here and in datatrove, and its possible values.
SETTINGS: dict[str, list[tuple[str, str, list[Any]]]] = {
    "gopher_repetition": [
        ("duplicate_lines", "dup_line_frac", SHARES),
        ("duplicate_paragraphs", "dup_para_frac", SHARES),
        ("duplicate_line_characters", "dup_line_char_frac", SHARES),
        ("duplicate_paragraph_characters", "dup_para_char_frac", SHARES),
        ("top_ngrams", "top_n_grams", TOPS),
        ("duplicate_ngrams", "dup_n_grams", REPEATS),
    ],
    "gopher_quality": [
        ("min_words", "min_doc_words", [20, 60]),
        ("max_words", "max_doc_words", [200, 2000]),
        ("min_mean_word_characters", "min_avg_word_length", [2.0, 4.5, "none"]),
        ("max_mean_word_characters", "max_avg_word_length", [5.5, 10.0, "none"]),
        ("symbols_per_word", "max_symbol_word_ratio", LIMITS),
        ("bullet_lines", "max_bullet_lines_ratio", LIMITS),
        ("ellipsis_lines", "max_ellipsis_lines_ratio", LIMITS),
        ("alphabetic_words", "max_non_alpha_words_ratio", [0.5, 0.7, 0.8]),
        ("stop_words", "min_stop_words", [2, 5, "none"]),
    ],
    "c4": [
        ("min_sentences", "min_num_sentences", [1, 5]),
        ("min_words_per_line", "min_words_per_line", [1, 6]),
        ("max_word_characters", "max_word_length", [15, 80]),
        ("terminal_punctuation", "filter_no_terminal_punct", FLAGS),
        ("citations", "remove_citations", FLAGS),
        ("lorem_ipsum", "filter_lorem_ipsum", FLAGS),
        ("javascript", "filter_javascript", FLAGS),
        ("curly_bracket", "filter_curly_bracket", FLAGS),
        ("policies", "filter_policy", FLAGS),
    ],
    "fineweb": [
        ("line_punctuation", "line_punct_thr", [0.05, 0.3, 0.6]),
        ("short_lines", "short_line_thr", [0.05, 0.3, 0.6]),
        ("short_line_characters", "short_line_length", [20, 40]),
        ("duplicate_line_characters", "char_duplicates_ratio", [0.05, 0.3, 0.6]),
        ("line_breaks_per_word", "new_line_ratio", [0.1, 0.2]),
    ],
}


def draw_pair(name, draw):
    section, engine = CLASSES[name]
    values = [(ours, theirs, draw.choice(choices)) for ours, theirs, choices in SETTINGS[name]]
    named = {theirs: None if value == "none" else value for _, theirs, value in values}
    step = published_filter(name, section(**{ours: value for ours, _, value in values}))
    return step, engine(**named, language=load_word_tokenizer())


SENTENCES = (
    "The baker opened the door, and the smell of bread was all over the street.",
    "Enable JavaScript to see the prices of the mill.",
    "Lorem ipsum dolor sit amet.",
    "We use cookies and our privacy policy says so.",
    "if (open) { bake(); }",
    "- a list",
    "and so on...",
    "### # #",
    "It was cited [12] and cited again [3].",
)


def make_documents(draw: random.Random, count: int) -> list[str]:
    """Mix code and prose of the standard library with planted, partly repeated lines."""
    prose = [document.text[:2500] for document in library_source()]
    texts = []
    for _ in range(count):
        lines = draw.choice(prose).split("\n")
        lines += draw.choices(SENTENCES, k=draw.choice([0, 2, 8]))
        lines += [draw.choice(SENTENCES)] * draw.choice([0, 0, 3, 30])
        texts.append("\n".join(lines) if draw.random() < 0.7 else "\n\n".join(lines))
    return texts


@pytest.mark.quick("c4-8-3", "fineweb-7-4")
@pytest.mark.parametrize(
    ("name", "seed", "least_reasons"),
    [("gopher_repetition", 7, 6), ("gopher_quality", 7, 6), ("c4", 8, 3), ("fineweb", 7, 4)],
)
def test_verdict_reason_and_text_equal_datatroves(name, seed, least_reasons):
    draw = random.Random(seed)
    reasons = set()
    for _ in range(12):
        step, engine = draw_pair(name, draw)
        for text in make_documents(draw, 25):
            ours, theirs = Document(text=text, id="0"), Document(text=text, id="0")
            keep, reason = get_filter_result(engine.filter(theirs))
            assert step(ours) == (None if keep else f"{step.name}: {reason}")
            assert ours.text == theirs.text
            reasons.add(reason)
    assert None in reasons
    assert len(reasons) > least_reasons


def test_the_table_has_every_setting_and_the_order_of_the_sections():
    assert [name for name in Filters.model_fields if name in PUBLISHED] == [*PUBLISHED]
    for name, settings in SETTINGS.items():
        assert list(PUBLISHED[name][1]) == list(CLASSES[name][0].model_fields)
        assert PUBLISHED[name][1] == {ours: theirs for ours, theirs, _ in settings}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_text_without_words_is_removed(name, preset):
    settings = getattr(preset("fineweb").filters, name)
    step = published_filter(name, settings)
    assert step(Document(text=" \n", id="0")) == f"{name}: empty"


def test_published_fineweb_equals_datatroves_defaults(preset):
    filters = preset("fineweb").filters
    for name, (_, engine) in CLASSES.items():
        changes = {"filter_no_terminal_punct": False} if name == "c4" else {}
        step = published_filter(name, getattr(filters, name))
        theirs = dict(vars(engine(language=load_word_tokenizer(), **changes)))
        ours = dict(vars(step.engine))
        del ours["stats"], theirs["stats"]  # counters, compared by identity
        assert ours == theirs
