import math
from collections import Counter

import pytest

from components.data.manifest import Manifest, SourceRecord, TokenizerRecord
from components.data.token_file import write_token_file
from data_prep.card import unigram_losses

EOD, VOCAB_SIZE = 4, 12
TRAIN = {"a": [[5, 5, 5, 6], [5, 7]], "b": [[8, 9, 8, 8, 8, 8, 8, 8, 8]]}
HELD_OUT = {"a": [[5, 6, 11]], "b": [[8, 8, 8], [9, 8]]}


@pytest.fixture
def prepared(tmp_path):
    def write(name, documents):
        return write_token_file(tmp_path / name, documents, eod_id=EOD, vocab_size=VOCAB_SIZE)

    sources = {
        name: SourceRecord(
            inputs=(),
            documents=3,
            train=(write(f"{name}.train", TRAIN[name]),),
            held_out=(write(f"{name}.held_out", HELD_OUT[name]),),
        )
        for name in TRAIN
    }
    tokenizer = TokenizerRecord(settings={}, files=(), vocab_size=VOCAB_SIZE, eod_id=EOD)
    manifest = Manifest(key="", tokenizer=tokenizer, held_out_fraction=0.1, sources=sources)
    return tmp_path, manifest


def losses(prepared, shares):
    folder, manifest = prepared
    return unigram_losses(folder, manifest, shares, VOCAB_SIZE)


def flat(documents):
    return [token for document in documents for token in [*document, EOD]]


def reference(shares):
    """Compute the probability of each id, then the mean of its logarithm."""
    tokens = {name: flat(documents) for name, documents in TRAIN.items()}
    total = sum(map(len, tokens.values()))
    drawn = dict.fromkeys(range(VOCAB_SIZE), 0.0)
    for name, share in shares.items():
        for token, count in Counter(tokens[name]).items():
            drawn[token] += share * total * count / len(tokens[name])
    probability = {v: (drawn[v] + 1) / (sum(drawn.values()) + VOCAB_SIZE) for v in drawn}
    return {
        name: -sum(math.log(probability[v]) for v in flat(documents)) / len(flat(documents))
        for name, documents in HELD_OUT.items()
    }


@pytest.mark.parametrize("shares", [{"a": 0.25, "b": 0.75}, {"a": 1.0}, {"a": 0.0, "b": 1.0}])
def test_the_loss_follows_from_smoothed_frequencies(prepared, shares):
    assert losses(prepared, shares) == pytest.approx(reference(shares))


def test_a_source_is_predicted_better_when_more_of_it_is_drawn(prepared):
    little = losses(prepared, {"a": 0.9, "b": 0.1})
    much = losses(prepared, {"a": 0.1, "b": 0.9})
    assert much["b"] < little["b"]
    assert much["a"] > little["a"]
