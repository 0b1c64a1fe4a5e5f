import pytest

from data_prep.stages.record import DocumentTally


def test_a_document_counts_once_under_the_short_reason():
    tally = DocumentTally()
    tally.count_document("web", "de", 10, 8, {"emails": 2})
    tally.count_removed("web", "de", "Käse", "repetition: 0.3 > 0.2")
    tally.count_removed("web", "fr", "fromage", "repetition: 0.4 > 0.2")
    count = tally.of_source("web")
    assert (count.documents_in, count.documents_out) == (3, 1)
    assert (count.bytes_in, count.bytes_out) == (10 + 5 + 7, 8)
    assert count.removed == {"repetition": 2}
    assert count.replaced == {"emails": 2}
    assert tally.counts["web"]["fr"].removed == {"repetition": 1}
    tally.check_totals()


def test_examples_are_the_first_three_in_the_order_of_the_tasks():
    tallies = [DocumentTally() for _ in range(3)]
    for number in range(6):
        tallies[number // 2].count_removed("web", "de", f"{number}" * 300, "empty")
    total = DocumentTally()
    for tally in tallies:
        total.add_tally(tally)
    examples = total.examples["empty"]
    assert [example["text"] for example in examples] == ["0" * 200, "1" * 200, "2" * 200]


def test_a_lost_document_is_noticed():
    tally = DocumentTally()
    tally.count_document("web", "de", 1, 1, {})
    tally.counts["web"]["de"].documents_out = 0
    with pytest.raises(AssertionError, match="web, de: in is not out"):
        tally.check_totals()
