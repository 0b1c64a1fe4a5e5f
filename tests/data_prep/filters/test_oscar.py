"""OSCAR's warnings: read, and computed as Ungoliant does."""

import pytest
from datatrove.data import Document

from data_prep.filters.published import AnnotationFilter, LineShapeFilter

LINE = "The miller waited for the flood to pass and counted the sacks. ".ljust(101, "a")
SHORT = LINE[:100]


@pytest.fixture
def by_annotation(preset):
    return AnnotationFilter(preset("opengptx").filters.annotations)


@pytest.fixture
def by_shape(preset):
    return LineShapeFilter(preset("opengptx").filters.line_shape)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({}, None),
        ({"quality_warnings": None, "harmful_pp": None, "categories": None}, None),
        ({"quality_warnings": ["tiny", "noisy"]}, "annotations: tiny noisy"),
        ({"harmful_pp": 24.9}, "annotations: perplexity 24.9, not 25 to 100000"),
        ({"harmful_pp": 25.0}, None),
        ({"harmful_pp": 1e5}, None),
        ({"harmful_pp": 1e5 + 1}, "annotations: perplexity 100001, not 25 to 100000"),
        ({"categories": ["press", "sect", "adult"]}, "annotations: adult sect"),
        ({"categories": ["press"]}, None),
    ],
)
def test_an_annotated_document_is_removed_as_opengptx_read_it(metadata, reason, by_annotation):
    document = Document(text="any", id="0", metadata=metadata)
    assert by_annotation(document) == reason


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([LINE] * 4, "line_shape: tiny, 4 < 5 lines"),
        ([LINE] * 5, None),
        ([*[LINE] * 4, "", LINE], None),
        ([*[LINE] * 4, ""], "line_shape: tiny, 4 < 5 lines"),
        ([SHORT, LINE] * 5, None),
        ([*[SHORT, LINE] * 5, SHORT], "line_shape: short_sentences, 6 of 11 lines"),
        ([*["Home"] * 2, *[LINE] * 8], "line_shape: header, 2 of 2 lines short"),
        ([*[LINE] * 8, *["Imprint"] * 2], "line_shape: footer, 2 of 2 lines short"),
        (["Home", *[LINE] * 9], None),
        ([*[LINE] * 4, "1" * 500], "line_shape: noisy, 0.61 > 0.5 no letters"),
    ],
)
def test_a_bare_text_gets_ungoliants_warnings(lines, reason, by_shape):
    assert by_shape(Document(text="\n".join(lines), id="0")) == reason


def test_a_line_of_an_edge_is_measured_in_bytes(by_shape):
    greek = "μ" * 50  # 50 characters, 100 bytes
    texts = ["\n".join([*[edge] * 2, *[LINE] * 8]) for edge in (greek, greek[:-1])]
    found = [by_shape(Document(text=text, id="0")) for text in texts]
    assert found == [None, "line_shape: header, 2 of 2 lines short"]


def test_marks_on_letters_are_no_noise(by_shape):
    hindi = "\n".join(["हिन्दी में लिखी हुई एक लम्बी पंक्ति " * 4] * 5)
    assert by_shape(Document(text=hindi, id="0")) is None
