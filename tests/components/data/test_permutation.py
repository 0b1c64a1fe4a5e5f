import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.data.order import permute_index, round_keys

SIZES = [*range(1, 67), 97, 100, 255, 256, 257, 1000, 4096, 10_007]


def permutation(size: int, seed: int = 0, source: str = "a", epoch: int = 0) -> list[int]:
    keys = round_keys(seed, source, epoch)
    return [permute_index(index, size, keys) for index in range(size)]


@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_every_index_is_drawn_once(seed):
    for size in SIZES:
        assert sorted(permutation(size, seed)) == list(range(size))


@given(st.integers(1, 400), st.integers(0), st.text(max_size=5), st.integers(0, 2**50))
def test_every_index_is_drawn_once_for_any_name(size, seed, source, epoch):
    assert sorted(permutation(size, seed, source, epoch)) == list(range(size))


@given(st.integers(1, 2**50), st.data())
def test_images_of_a_huge_range_are_distinct_and_inside(size, data):
    indices = data.draw(st.sets(st.integers(0, size - 1), max_size=50))
    keys = round_keys(3, "a", 0)
    images = {permute_index(index, size, keys) for index in indices}
    assert len(images) == len(indices)
    assert all(0 <= image < size for image in images)


def test_seed_source_and_epoch_each_give_another_permutation():
    base = permutation(1000)
    for other in (
        permutation(1000, seed=1),
        permutation(1000, source="b"),
        permutation(1000, epoch=1),
    ):
        agreements = sum(a == b for a, b in zip(base, other, strict=True))
        assert agreements < 8  # one is expected of unrelated permutations


@pytest.mark.parametrize("size", [1000, 1024, 30_011])
def test_it_looks_shuffled(size):
    """Compare three statistics with those of a uniform permutation, within four deviations."""
    order = np.array(permutation(size), dtype=float)
    tolerance = 4 / math.sqrt(size)
    displacement = np.abs(order - np.arange(size)).mean() / size
    assert displacement == pytest.approx(1 / 3, abs=tolerance)
    for lag in (1, 2, math.isqrt(size), math.isqrt(size) + 1):
        assert abs(np.corrcoef(order[:-lag], order[lag:])[0, 1]) < tolerance
    assert abs(np.corrcoef(order, np.arange(size))[0, 1]) < tolerance
    rises = (np.diff(order) > 0).mean()
    assert rises == pytest.approx(1 / 2, abs=4 / math.sqrt(12 * size))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_permutations_of_a_few_are_about_equally_frequent(size):
    draws = 120 * 100
    counts = Counter(tuple(permutation(size, seed)) for seed in range(draws))
    kinds = math.factorial(size)
    assert len(counts) == kinds
    expected = draws / kinds
    chi_squared = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_squared < kinds - 1 + 5 * math.sqrt(2 * (kinds - 1))


@pytest.mark.parametrize("size", [5, 7, 14, 30])
def test_each_index_of_a_small_source_comes_equally_often_at_each_place(size):
    draws = 3000
    counts = np.zeros((size, size))
    for epoch in range(draws):
        counts[np.arange(size), permutation(size, epoch=epoch)] += 1
    expected = draws / size
    freedom = (size - 1) ** 2
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared < freedom + 5 * math.sqrt(2 * freedom)
