from hypothesis import given
from hypothesis import strategies as st

from data_prep.tokenise import sample_texts


@given(st.lists(st.text()), st.integers(0, 500))
def test_the_sample_is_never_larger_than_asked(texts, sample_bytes):
    sample = sample_texts(texts, sample_bytes)
    assert sum(len(piece.encode()) for piece in sample) <= sample_bytes


def test_a_small_text_is_taken_whole():
    assert sorted(sample_texts(["b\nc", "a"], 1000)) == ["a", "b\nc"]


def test_a_large_text_is_sampled_from_beginning_to_end():
    lines = [f"line {number:06d} " + "x" * 100 for number in range(5000)]
    sample = "\n".join(sample_texts(["\n".join(lines)], 50_000))
    numbers = sorted(int(line.split()[1]) for line in sample.split("\n"))
    assert 48_000 < len(sample) <= 50_000
    assert numbers[0] < 500
    assert numbers[-1] > 4500


def test_the_order_of_the_documents_has_no_effect():
    texts = [f"document {number}" * 50 for number in range(100)]
    assert sample_texts(texts, 9000) == sample_texts(texts[::-1], 9000)
