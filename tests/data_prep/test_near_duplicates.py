import hashlib
import random
from itertools import combinations, pairwise, product
from math import sqrt

import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.config.schema.data import NearDuplicates
from data_prep.near_duplicates import Groups, _join, find_duplicates, write_signatures

WORDS = ["".join(letters) for letters in product("abcdefgh", "aeiou", "klmnpr")]
NGRAM, BANDS, ROWS = 3, 21, 6


def settings(threshold, *, bands=BANDS, rows=ROWS, seed=7):
    return NearDuplicates(ngram=NGRAM, bands=bands, rows=rows, threshold=threshold, seed=seed)


def removed(folder, parts, chosen):
    """Write a file of signatures for each part, and find the duplicates of each part."""
    files = [folder / f"{index}.npy" for index in range(len(parts))]
    for file, texts in zip(files, parts, strict=True):
        assert write_signatures(iter(texts), file, chosen) == len(texts)
    return [indices.tolist() for indices in find_duplicates(files, chosen, folder)]


def new_text(draw, count=240):
    return draw.choices(WORDS, k=count)


def altered(draw, words, changes):
    """Replace random words; each change affects up to NGRAM shingles."""
    copy = list(words)
    for place in draw.sample(range(len(copy)), changes):
        copy[place] = draw.choice(WORDS)
    return copy


def jaccard(one, other):
    """Compare the sets of n-grams, not their hashes."""
    first, second = (
        {tuple(words[i : i + NGRAM]) for i in range(len(words) - NGRAM + 1)}
        for words in (one, other)
    )
    return len(first & second) / len(first | second)


@pytest.fixture(scope="module")
def pairs():
    """Return pairs of texts with their true similarity, from about 0.3 to 1."""
    draw = random.Random(3)
    originals = [new_text(draw) for _ in range(1_600)]
    copies = [altered(draw, words, 1 + index % 48) for index, words in enumerate(originals)]
    similarity = [jaccard(*pair) for pair in zip(originals, copies, strict=True)]
    texts = [[" ".join(words) for words in side] for side in (originals, copies)]
    return texts, np.array(similarity)


def test_a_pair_is_found_with_the_probability_of_the_bands(tmp_path, pairs):
    texts, similarity = pairs
    chosen = settings("none", bands=10, rows=5)
    originals, copies = removed(tmp_path, texts, chosen)
    assert originals == []
    found = np.isin(np.arange(len(similarity)), copies)
    probability = 1 - (1 - similarity**5) ** 10
    for low in np.arange(0.3, 1, 0.1):
        inside = (similarity >= low) & (similarity < low + 0.1)
        chance = probability[inside]
        expected, error = chance.sum(), sqrt((chance * (1 - chance)).sum())
        assert inside.sum() > 50
        assert abs(found[inside].sum() - expected) <= 4 * error + 0.5


def test_pairs_above_the_threshold_are_found_and_far_ones_not(tmp_path, pairs):
    texts, similarity = pairs
    _, copies = removed(tmp_path, texts, settings(0.8))
    found = np.isin(np.arange(len(similarity)), copies)
    assert (similarity >= 0.8).sum() > 250
    assert found[similarity >= 0.8].mean() >= 0.99
    assert (similarity < 0.65).sum() > 300
    assert found[similarity < 0.65].mean() <= 0.01


def test_candidates_below_the_threshold_are_not_joined(tmp_path, pairs):
    texts, similarity = pairs
    some = [side[:200] for side in texts]
    eager = removed(tmp_path, some, settings("none", bands=126, rows=1))
    verified = removed(tmp_path, some, settings(0.8, bands=126, rows=1))
    assert eager[1] == list(range(200))
    assert verified[0] == []
    assert set(verified[1]) >= set(np.flatnonzero(similarity[:200] > 0.9).tolist())
    assert similarity[verified[1]].min() > 0.6


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=14),
    st.sets(st.tuples(st.integers(0, 13), st.integers(0, 13))),
)
def test_every_similar_pair_of_a_bucket_is_joined(buckets, pairs):
    """Compare with a loop over all pairs, for random relations."""
    documents = np.random.default_rng(len(pairs)).permutation(len(buckets))
    related = np.zeros((14, 14), np.bool_)
    for left, right in pairs:
        related[left, right] = related[right, left] = True
    keys = np.sort(np.array(buckets, np.uint64))
    groups = Groups(len(buckets))
    _join(groups, documents, keys, lambda left, right: related[left, right])
    graph = networkx.Graph()
    graph.add_nodes_from(range(len(buckets)))
    graph.add_edges_from(
        (int(documents[i]), int(documents[j]))
        for i, j in combinations(range(len(buckets)), 2)
        if keys[i] == keys[j] and related[documents[i], documents[j]]
    )
    parts = networkx.connected_components(graph)
    assert groups.list_repeated().tolist() == sorted(
        node for part in parts for node in part - {min(part)}
    )


@pytest.mark.parametrize("threshold", ["none", 0.8])
def test_the_distribution_over_files_has_no_effect(tmp_path, pairs, threshold):
    texts = [text for pair in zip(*pairs[0], strict=True) for text in pair][:400]
    texts += texts[:5]
    (whole,) = removed(tmp_path, [texts], settings(threshold))
    cuts = [0, 1, 1, 130, 400, len(texts)]
    parts = [texts[start:end] for start, end in pairwise(cuts)]
    dealt = removed(tmp_path, parts, settings(threshold))
    assert whole == [cuts[i] + index for i, part in enumerate(dealt) for index in part]
    assert set(whole) >= set(range(400, 405))


def test_a_chain_is_one_group_though_its_ends_differ(tmp_path):
    draw = random.Random(5)
    chain = [new_text(draw)]
    for _ in range(12):
        chain.append(altered(draw, chain[-1], 4))
    assert jaccard(chain[0], chain[-1]) < 0.5
    texts = [" ".join(words) for words in chain]
    draw.shuffle(texts)
    assert removed(tmp_path, [texts], settings(0.8)) == [list(range(1, 13))]


def test_unrelated_documents_stay(tmp_path):
    draw = random.Random(6)
    texts = [" ".join(new_text(draw, draw.randint(1, 300))) for _ in range(2_000)]
    assert len(set(texts)) == len(texts)
    found = removed(tmp_path, [texts], settings(0.8))[0]
    short = [index for index in found if len(texts[index].split()) < 8]
    assert found == short


def test_empty_and_very_short_texts_are_safe(tmp_path):
    texts = ["", "one", " \n", "two", "ONE", "one two", "--", "", "one, two!", "two one"]
    assert removed(tmp_path, [texts], settings("none")) == [[4, 8]]
    assert removed(tmp_path, [texts], settings(0.8)) == [[4, 8]]
    assert removed(tmp_path, [[], ["", ""]], settings(0.8)) == [[], []]


def test_signatures_depend_only_on_text_and_seed(tmp_path):
    def digest(seed):
        texts = ["a text", "Ein überall gleicher Text"]
        write_signatures(texts, tmp_path / "a", settings(0.8, seed=seed))
        return hashlib.sha256((tmp_path / "a").read_bytes()).hexdigest()

    assert digest(0) != digest(1)
    assert digest(0).startswith("dff1edcacd987637")


def test_a_text_that_cannot_be_read_leaves_no_file(tmp_path):
    def texts():
        yield "one"
        raise ValueError("torn")

    with pytest.raises(ValueError, match="torn"):
        write_signatures(texts(), tmp_path / "a.npy", settings(0.8))
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_in_the_folder(tmp_path):
    removed(tmp_path, [["one", "one"]], settings(0.8))
    assert [path.name for path in tmp_path.iterdir()] == ["0.npy"]


DOCUMENTS = 40
PAIRS = st.lists(st.tuples(st.integers(0, DOCUMENTS - 1), st.integers(0, DOCUMENTS - 1)))


@given(st.lists(PAIRS, max_size=4))
def test_groups_are_the_connected_components_and_their_first_stays(calls):
    groups = Groups(DOCUMENTS)
    graph = networkx.Graph()
    graph.add_nodes_from(range(DOCUMENTS))
    for pairs in calls:
        graph.add_edges_from(pairs)
        columns = np.array(pairs, np.int64).reshape(-1, 2)
        groups.join_groups(columns[:, 0], columns[:, 1])
    parts = list(networkx.connected_components(graph))
    assert groups.list_repeated().tolist() == sorted(
        document for part in parts for document in part - {min(part)}
    )
    for part in parts:
        assert set(groups.find_first(np.array(sorted(part))).tolist()) == {min(part)}


def test_a_long_chain_is_one_group():
    count = 1 << 18
    groups = Groups(count)
    groups.join_groups(np.arange(count - 1), np.arange(1, count))
    assert groups.list_repeated().tolist() == list(range(1, count))
