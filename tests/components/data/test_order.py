"""The order of samples: shares at every prefix, no repeats within an epoch, phases."""

import itertools
import math
import random
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.data.order import Phase, SampleId, SampleOrder, permute_index, round_keys
from components.errors import RecipeError

PREFIXES = 1_500


def exact(shares) -> dict[str, Fraction]:
    """Return the shares as in the recipe, divided by their sum."""
    written = {name: Fraction(repr(float(share))) for name, share in shares.items()}
    return {name: share / sum(written.values()) for name, share in written.items()}


def mixture(count: int, steepness: float, seed: int = 0) -> dict[str, float]:
    draw = random.Random(seed)
    weights = [draw.random() ** steepness for _ in range(count)]
    return {f"s{i}": weight / sum(weights) for i, weight in enumerate(weights)}


MIXTURES = {
    "one": {"a": 1.0},
    "halves": {"a": 0.5, "b": 0.5},
    "thirds": {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3},
    "heavy": {"a": 0.999, "b": 0.001},
    "with a share of zero": {"a": 0.3, "b": 0.0, "c": 0.7},
    "24 equal": {f"s{i}": 1 / 24 for i in range(24)},
    "24 unequal": mixture(24, 2),
    "46 unequal": mixture(46, 5),
    "a chain of halves": {f"s{i}": 2.0 ** -min(i + 1, 15) for i in range(16)},
    "Fibonacci": {
        f"s{i}": weight / 986
        for i, weight in enumerate([1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377])
    },
}


def order_of(shares, seed: int = 0, size: int = 97) -> SampleOrder:
    samples = {name: size + i for i, name in enumerate(shares)}
    return one_phase(shares, samples, seed)


def one_phase(shares, samples, seed: int = 0) -> SampleOrder:
    phase = Phase(first_sample=0, shares=shares, path="data.shares")
    return SampleOrder(phases=[phase], samples=samples, seed=seed)


@pytest.mark.parametrize("shares", MIXTURES.values(), ids=MIXTURES)
def test_every_prefix_keeps_the_shares_within_two_samples(shares):
    order, parts = order_of(shares), exact(shares)
    counts: Counter[str] = Counter()
    for position in range(PREFIXES):
        assert all(abs(counts[name] - parts[name] * position) < 2 for name in shares)
        counts[order[position].source] += 1


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 10**6), min_size=1, max_size=50).filter(sum), st.integers(0, 2**60)
)
def test_any_mixture_keeps_the_shares_within_two_samples(weights, start):
    shares = {f"s{i}": weight / sum(weights) for i, weight in enumerate(weights)}
    order, parts = order_of(shares), exact(shares)
    assert order[np.int64(start)] == order[start]
    for position in itertools.chain(range(40), range(start, start + 20)):
        drawn = order[position].source
        for name in shares:
            count = order.count_samples(name, position)
            assert abs(count - parts[name] * position) < 2
            assert order.count_samples(name, position + 1) - count == (name == drawn)


def test_each_epoch_of_a_source_draws_every_sample_once_in_another_order():
    shares, samples = {"a": 0.7, "b": 0.2, "c": 0.1}, {"a": 50, "b": 3, "c": 1}
    order = one_phase(shares, samples, seed=5)
    for name, size in samples.items():
        drawn = [order[p] for p in range(2000) if order[p].source == name]
        epochs = [drawn[start : start + size] for start in range(0, len(drawn) - size, size)]
        for number, epoch in enumerate(epochs):
            assert {sample.epoch for sample in epoch} == {number}
            assert sorted(sample.index for sample in epoch) == list(range(size))
        kinds = {tuple(sample.index for sample in epoch) for epoch in epochs}
        assert len(kinds) == min(len(epochs), math.factorial(size))


def test_the_same_seed_gives_the_same_order():
    shares = MIXTURES["24 unequal"]
    first, again, other = (order_of(shares, seed=seed) for seed in (1, 1, 2))
    positions = [*range(500), *range(2**40, 2**40 + 500)]
    assert [first[p] for p in positions] == [again[p] for p in positions]
    assert sum(first[p] == other[p] for p in positions) < 50  # ten are expected


def test_the_order_of_shares_in_the_recipe_has_no_effect():
    shares = MIXTURES["46 unequal"]
    turned = dict(reversed(shares.items()))
    samples = dict.fromkeys(shares, 1000)
    one = one_phase(shares, samples)
    two = one_phase(turned, samples)
    assert [one[p] for p in range(1000)] == [two[p] for p in range(1000)]
    shares = {"a": 0.3333334, "b": 0.3333333, "c": 0.3333334}
    order = order_of(shares)
    assert sum(order.count_samples(name, 10**12) for name in shares) == 10**12


def test_a_source_without_a_share_is_never_counted():
    order = one_phase({"a": 1.0, "b": 0.0}, {"a": 3, "b": 0, "c": 5})
    assert (order.count_samples("b", 100), order.count_samples("c", 100)) == (0, 0)
    assert order[0] == SampleId("a", 0, order[0].index)
    with pytest.raises(IndexError, match="position -1 is before the first sample"):
        order[-1]


def test_shares_without_samples_and_phases_out_of_order_are_refused():
    message = r"data\.shares\.empty: 0\.5 of the samples, but the source is shorter"
    with pytest.raises(RecipeError, match=message):
        one_phase({"a": 0.5, "empty": 0.5}, {"a": 5, "b": 5, "empty": 0})
    phases = [phase(0, a=1.0), phase(5, a=1.0), phase(5, b=1.0)]
    with pytest.raises(RecipeError, match=r"phases\.5: starts at sample 5, not after"):
        SampleOrder(phases=phases, samples=SAMPLES, seed=0)


def test_the_shares_at_a_position_come_from_its_phase():
    phases = [
        Phase(first_sample=0, shares={"a": 0.25, "b": 0.75}, path="data.shares"),
        Phase(first_sample=10, shares={"b": 0.3, "c": 0.7000001}, path="data.phases.end"),
    ]
    order = SampleOrder(phases=phases, samples={"a": 5, "b": 5, "c": 5}, seed=0)
    assert order.shares_at(0) == order.shares_at(9) == {"a": 0.25, "b": 0.75, "c": 0.0}
    late = order.shares_at(10)
    assert late == {"a": 0.0, "b": pytest.approx(0.3, abs=1e-6), "c": pytest.approx(0.7)}
    assert sum(late.values()) == pytest.approx(1, abs=1e-15)


def permutation(size: int, seed: int = 0, source: str = "a", epoch: int = 0) -> list[int]:
    keys = round_keys(seed, source, epoch)
    return [permute_index(index, size, keys) for index in range(size)]


@given(st.integers(1, 400), st.integers(0), st.text(max_size=5), st.integers(0, 2**50))
def test_every_index_is_drawn_once(size, seed, source, epoch):
    assert sorted(permutation(size, seed, source, epoch)) == list(range(size))


@given(st.integers(1, 2**50), st.data())
def test_permuted_indices_of_a_huge_range_are_distinct_and_inside(size, data):
    indices = data.draw(st.sets(st.integers(0, size - 1), max_size=50))
    keys = round_keys(3, "a", 0)
    images = {permute_index(index, size, keys) for index in indices}
    assert len(images) == len(indices)
    assert all(0 <= image < size for image in images)


def test_seed_source_and_epoch_each_give_another_permutation():
    base = permutation(1000)
    for other in ({"seed": 1}, {"source": "b"}, {"epoch": 1}):
        agreements = sum(map(int.__eq__, base, permutation(1000, **other)))
        assert agreements < 8  # one is expected of unrelated permutations


@pytest.mark.parametrize("size", [1000, 1024, 30_011])
def test_a_permutation_looks_shuffled(size):
    """Compare three statistics with a uniform permutation, within four deviations."""
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
def test_all_small_permutations_are_equally_frequent(size):
    draws = 6_000
    counts = Counter(tuple(permutation(size, seed)) for seed in range(draws))
    kinds = math.factorial(size)
    assert len(counts) == kinds
    expected = draws / kinds
    chi_squared = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_squared < kinds - 1 + 5 * math.sqrt(2 * (kinds - 1))


@pytest.mark.parametrize("size", [5, 7, 14, 30])
def test_each_index_is_equally_frequent_at_each_position(size):
    draws = 3000
    counts = np.zeros((size, size))
    for epoch in range(draws):
        counts[np.arange(size), permutation(size, epoch=epoch)] += 1
    expected = draws / size
    freedom = (size - 1) ** 2
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared < freedom + 5 * math.sqrt(2 * freedom)


SAMPLES = {"a": 7, "b": 40, "c": 3, "d": 90}


def phase(first_sample: int, **shares: float) -> Phase:
    return Phase(first_sample=first_sample, shares=shares, path=f"data.phases.{first_sample}")


@st.composite
def runs(draw) -> tuple[list[Phase], SampleOrder]:
    lengths = draw(st.lists(st.integers(1, 120), min_size=1, max_size=5))
    phases, start = [], 0
    for length in lengths:
        weights = draw(st.lists(st.integers(0, 50), min_size=4, max_size=4).filter(sum))
        shares = {n: w / sum(weights) for n, w in zip(SAMPLES, weights, strict=True)}
        phases.append(Phase(first_sample=start, shares=shares, path="x"))
        start += length
    order = SampleOrder(phases=phases, samples=SAMPLES, seed=draw(st.integers(0, 9)))
    return phases, order


@settings(max_examples=40)
@given(runs())
def test_every_prefix_of_each_phase_keeps_its_shares_within_two_samples(run):
    phases, order = run
    ends = [phase.first_sample for phase in phases[1:]] + [phases[-1].first_sample + 150]
    for phase, end in zip(phases, ends, strict=True):
        shares = exact(phase.shares)
        counts: Counter[str] = Counter()
        for position in range(phase.first_sample, end):
            counts[order[position].source] += 1
            done = position + 1 - phase.first_sample
            assert all(abs(counts[name] - shares[name] * done) < 2 for name in shares)


@settings(max_examples=40)
@given(runs())
def test_an_epoch_across_phases_has_each_sample_once(run):
    phases, order = run
    drawn: dict[str, list[SampleId]] = {name: [] for name in SAMPLES}
    for position in range(phases[-1].first_sample + 150):
        sample = order[position]
        drawn[sample.source].append(sample)
    for name, size in SAMPLES.items():
        for start in range(0, len(drawn[name]), size):
            epoch = drawn[name][start : start + size]
            assert {sample.epoch for sample in epoch} == {start // size}
            assert len({sample.index for sample in epoch}) == len(epoch)


@settings(max_examples=20)
@given(runs())
def test_counts_equal_the_drawn_samples(run):
    phases, order = run
    counts: Counter[str] = Counter()
    for position in range(phases[-1].first_sample + 60):
        assert all(order.count_samples(name, position) == counts[name] for name in SAMPLES)
        counts[order[position].source] += 1


def test_a_later_phase_does_not_change_earlier_samples():
    one = SampleOrder(phases=[phase(0, a=0.2, d=0.8)], samples=SAMPLES, seed=3)
    later = [phase(0, a=0.2, d=0.8), phase(500, b=1.0)]
    two = SampleOrder(phases=later, samples=SAMPLES, seed=3)
    assert [one[p] for p in range(500)] == [two[p] for p in range(500)]
    assert {two[p].source for p in range(500, 600)} == {"b"}


def test_drawn_shares_are_summarized_with_promised_shares():
    phases = [phase(0, a=0.5, d=0.5), phase(100, d=1.0)]
    order = SampleOrder(phases=phases, samples=SAMPLES, seed=0)
    drawn = order.summarize_draws(200)
    promised = {name: summary.promised_share for name, summary in drawn.items()}
    assert promised == {"a": 0.25, "b": 0, "c": 0, "d": 0.75}
    counts = Counter(order[p].source for p in range(200)) | {"b": 0, "c": 0}
    assert {name: summary.samples for name, summary in drawn.items()} == counts
    assert drawn["d"].epochs == drawn["d"].samples / 90
    assert order.summarize_draws(50)["d"].promised_share == 0.5
    assert order.summarize_draws(0)["d"].share == 0
