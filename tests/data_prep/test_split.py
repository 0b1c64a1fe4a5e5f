import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.read import Document
from data_prep.sources import HeldOutSplit, measure_groups
from data_prep.sources import choose_split as choose


def choose_split(documents, fraction: float) -> tuple[HeldOutSplit, int]:
    groups = measure_groups(documents)
    return choose(groups, fraction), groups.documents


FRACTIONS = st.floats(0.001, 0.999)


@given(st.lists(st.text(min_size=1), min_size=2), FRACTIONS)
def test_every_document_is_on_one_side_and_neither_side_is_empty(words, fraction):
    documents = [Document(word) for word in words]
    split, count = choose_split(documents, fraction)
    assert count == len(documents)
    train = [split.train_text(document) for document in documents]
    held_out = [split.held_out_text(document) for document in documents]
    assert [a + b for a, b in zip(train, held_out, strict=True)] == words
    if len(set(words)) > 1:
        assert any(train)
        assert any(held_out)
        assert not set(filter(None, train)) & set(filter(None, held_out))


def test_about_the_fraction_is_held_out():
    documents = [Document(f"document {number}") for number in range(4000)]
    split, _ = choose_split(documents, 0.1)
    held_out = sum(bool(split.held_out_text(document)) for document in documents)
    assert held_out == pytest.approx(400, abs=60)  # three standard deviations


def test_more_documents_do_not_change_the_side_of_others():
    documents = [Document(f"document {number}") for number in range(300)]
    few, _ = choose_split(documents[:150], 0.1)
    many, _ = choose_split(documents, 0.1)
    assert all(few.train_text(d) == many.train_text(d) for d in documents[:150])


@pytest.mark.parametrize("copies", [1, 3])
def test_a_lone_document_is_split_inside_at_white_space(copies):
    text = "eins zwei drei vier fünf sechs sieben acht neun zehn"
    split, _ = choose_split([Document(text)] * copies, 0.2)
    assert split.train_text(Document(text)) == "eins zwei drei vier fünf sechs sieben acht"
    assert split.held_out_text(Document(text)) == " neun zehn"


def test_a_lone_word_is_split_at_the_letter():
    word = Document("abcdefghij")
    split, _ = choose_split([word], 0.2)
    assert (split.train_text(word), split.held_out_text(word)) == ("abcdefgh", "ij")


def test_documents_of_a_group_stay_together():
    documents = [Document(str(i), str(i // 5)) for i in range(500)]
    split, _ = choose_split(documents, 0.3)
    sides = {(d.group_text, bool(split.held_out_text(d))) for d in documents}
    assert len(sides) == 100
