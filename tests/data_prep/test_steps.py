"""The steps of each work, in their order, for each source."""

import pickle
from collections import Counter
from pathlib import Path

import pytest
from datatrove.data import Document

from data_prep.steps import build_steps

CORPUS = Path(__file__).resolve().parents[2] / "corpora" / "eu24"
WHERE = "data.preparation"
PAGE = "\n".join(
    f"{line} Write to baker{i}@example.eu." if i % 4 == 0 else line
    for i, line in enumerate((CORPUS / "en.txt").read_text("utf-8").split("\n\n"))
)


def names(preset, work: str, source: str = "web") -> list[str]:
    return [step.name for step in build_steps(preset(work), source=source, where=WHERE)]


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        ("plain", "normalise"),
        ("opengptx", "normalise language annotations line_shape"),
        ("roots", "normalise language text_ratios personal_data"),
        ("olmoe", "repeated_ngrams"),
        (
            "fineweb",
            "normalise language gopher_repetition gopher_quality c4 fineweb personal_data",
        ),
    ],
)
def test_a_work_has_its_steps_in_order(work, expected, preset):
    assert names(preset, work) == expected.split()


def test_an_excepted_source_keeps_the_other_steps(preset):
    assert names(preset, "roots", "code") == ["normalise"]
    assert names(preset, "roots", "yo") == ["normalise"]
    assert names(preset, "roots", "zhs") == names(preset, "roots")


@pytest.mark.parametrize("work", ["plain", "opengptx", "roots", "olmoe", "fineweb"])
def test_a_good_page_is_kept_and_steps_can_be_pickled(work, preset):
    steps = build_steps(preset(work), source="web", where=WHERE)
    moved = pickle.loads(pickle.dumps(steps))
    document, again = Document(text=PAGE, id="0"), Document(text=PAGE, id="0")
    assert [step(document) for step in steps] == [None] * len(steps)
    assert [step(again) for step in moved] == [None] * len(steps)
    assert (document.text, document.metadata) == (again.text, again.metadata)


def test_addresses_are_replaced_by_the_placeholder_of_roots(preset):
    document = Document(text=PAGE, id="0")
    for step in build_steps(preset("roots"), source="en", where=WHERE):
        assert step(document) is None
    assert document.text.count("PI:EMAIL") == 3
    assert "@" not in document.text
    assert document.metadata["personal_data"] == {"emails": 3, "ip_addresses": 0}
    assert document.metadata["language"] == "en"


def test_removals_are_counted_by_the_word_before_the_colon(preset):
    spam = "buy now " * 60
    counts: Counter[str] = Counter()
    for work in ("roots", "olmoe", "fineweb"):
        document = Document(text=spam, id="0")
        steps = build_steps(preset(work), source="web", where=WHERE)
        reasons = (step(document) for step in steps if step.name != "language")
        counts[next(filter(None, reasons)).split(":")[0]] += 1
    assert counts == {"text_ratios": 1, "repeated_ngrams": 1, "gopher_repetition": 1}


def test_opengptx_keeps_all_words_of_the_24_stories(preset):
    steps = build_steps(preset("opengptx"), source="web", where=WHERE)
    for file in CORPUS.glob("*.txt"):
        document = Document(text=file.read_text("utf-8"), id=file.stem)
        assert [step(document) for step in steps] == [None] * 4
        assert document.metadata["language"] == file.stem
        assert document.text.split() == file.read_text("utf-8").split()
