"""The verdicts are those of datatrove's filters, called directly with their own names."""

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
from data_prep.sources import library_docs


def repetition_pair(draw):
    shares = [draw.choice([0.05, 0.1, 0.2, 0.4, 0.8]) for _ in range(6)]
    top, duplicate = ((2, shares[4]), (3, 0.3)), ((5, shares[5]), (6, 0.5))
    ours = GopherRepetition(
        duplicate_lines=shares[0],
        duplicate_paragraphs=shares[1],
        duplicate_line_characters=shares[2],
        duplicate_paragraph_characters=shares[3],
        top_ngrams=top,
        duplicate_ngrams=duplicate,
    )
    theirs = GopherRepetitionFilter(
        *shares[:4], top_n_grams=top, dup_n_grams=duplicate, language=load_word_tokenizer()
    )
    return published_filter("gopher_repetition", ours), theirs


def quality_pair(draw):
    least, most = draw.choice([20, 60]), draw.choice([200, 2000])
    short, long = draw.choice([2.0, 4.5, "none"]), draw.choice([5.5, 10.0, "none"])
    symbols, bullets, ellipses = (draw.choice([0.01, 0.1, 0.3]) for _ in range(3))
    alphabetic, stop = draw.choice([0.5, 0.7, 0.8]), draw.choice([2, 5, "none"])
    ours = GopherQuality(
        min_words=least,
        max_words=most,
        min_mean_word_characters=short,
        max_mean_word_characters=long,
        symbols_per_word=symbols,
        bullet_lines=bullets,
        ellipsis_lines=ellipses,
        alphabetic_words=alphabetic,
        stop_words=stop,
    )
    theirs = GopherQualityFilter(
        least,
        most,
        None if short == "none" else short,
        None if long == "none" else long,
        symbols,
        bullets,
        ellipses,
        alphabetic,
        None if stop == "none" else stop,
        language=load_word_tokenizer(),
    )
    return published_filter("gopher_quality", ours), theirs


def c4_pair(draw):
    sentences, per_line, longest = (
        draw.choice([1, 5]),
        draw.choice([1, 6]),
        draw.choice([15, 80]),
    )
    flags = [draw.random() < 0.5 for _ in range(6)]
    ours = C4(
        min_sentences=sentences,
        min_words_per_line=per_line,
        max_word_characters=longest,
        terminal_punctuation=flags[0],
        citations=flags[1],
        lorem_ipsum=flags[2],
        javascript=flags[3],
        curly_bracket=flags[4],
        policies=flags[5],
    )
    theirs = C4QualityFilter(
        filter_no_terminal_punct=flags[0],
        remove_citations=flags[1],
        filter_lorem_ipsum=flags[2],
        filter_javascript=flags[3],
        filter_curly_bracket=flags[4],
        filter_policy=flags[5],
        min_num_sentences=sentences,
        min_words_per_line=per_line,
        max_word_length=longest,
        language=load_word_tokenizer(),
    )
    return published_filter("c4", ours), theirs


def fineweb_pair(draw):
    punctuation, short, duplicates = (draw.choice([0.05, 0.3, 0.6]) for _ in range(3))
    length, breaks = draw.choice([20, 40]), draw.choice([0.1, 0.2])
    ours = FineWeb(
        line_punctuation=punctuation,
        short_lines=short,
        short_line_characters=length,
        duplicate_line_characters=duplicates,
        line_breaks_per_word=breaks,
    )
    theirs = FineWebQualityFilter(
        line_punct_thr=punctuation,
        short_line_thr=short,
        short_line_length=length,
        char_duplicates_ratio=duplicates,
        new_line_ratio=breaks,
        language=load_word_tokenizer(),
    )
    return published_filter("fineweb", ours), theirs


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
    """Mix prose of the standard library with planted lines, some of them many times over."""
    prose = [document.text[:2500] for document in library_docs()]
    texts = []
    for _ in range(count):
        lines = draw.choice(prose).split("\n")
        lines += draw.choices(SENTENCES, k=draw.choice([0, 2, 8]))
        lines += [draw.choice(SENTENCES)] * draw.choice([0, 0, 3, 30])
        texts.append("\n".join(lines) if draw.random() < 0.7 else "\n\n".join(lines))
    return texts


@pytest.mark.quick("c4_pair-3", "fineweb_pair-4")
@pytest.mark.parametrize(
    ("pair", "least_reasons"),
    [(repetition_pair, 6), (quality_pair, 6), (c4_pair, 3), (fineweb_pair, 4)],
)
def test_verdict_reason_and_text_are_datatroves(pair, least_reasons):
    draw = random.Random(7)
    reasons = set()
    for _ in range(12):
        step, engine = pair(draw)
        for text in make_documents(draw, 25):
            ours, theirs = Document(text=text, id="0"), Document(text=text, id="0")
            keep, reason = get_filter_result(engine.filter(theirs))
            assert step(ours) == (None if keep else f"{step.name}: {reason}")
            assert ours.text == theirs.text
            reasons.add(reason)
    assert None in reasons
    assert len(reasons) > least_reasons


def test_the_table_has_every_setting_and_the_order_of_the_sections():
    sections = {
        "gopher_repetition": GopherRepetition,
        "gopher_quality": GopherQuality,
        "c4": C4,
        "fineweb": FineWeb,
    }
    assert [name for name in Filters.model_fields if name in PUBLISHED] == [*PUBLISHED]
    section: Any
    for name, section in sections.items():
        assert list(PUBLISHED[name][1]) == list(section.model_fields)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_text_without_words_is_removed_not_divided_by(name, preset):
    settings = getattr(preset("fineweb").filters, name)
    step = published_filter(name, settings)
    assert step(Document(text=" \n", id="0")) == f"{name}: empty"


def test_fineweb_as_published_is_datatroves_defaults(preset):
    filters = preset("fineweb").filters
    engines = {
        "gopher_repetition": GopherRepetitionFilter(language=load_word_tokenizer()),
        "gopher_quality": GopherQualityFilter(language=load_word_tokenizer()),
        "c4": C4QualityFilter(filter_no_terminal_punct=False, language=load_word_tokenizer()),
        "fineweb": FineWebQualityFilter(language=load_word_tokenizer()),
    }
    pairs = [
        (published_filter(name, getattr(filters, name)), engine)
        for name, engine in engines.items()
    ]
    for step, engine in pairs:
        ours, theirs = dict(vars(step.engine)), dict(vars(engine))
        del ours["stats"], theirs["stats"]  # counters, compared by identity
        assert ours == theirs
