import itertools
import math
import random
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.data.order import Phase, SampleId, SampleOrder
from components.errors import RecipeError

PREFIXES = 3000


def exact(shares):
    """The shares as they are written, divided by their sum."""
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
    "with nothing of one": {"a": 0.3, "b": 0.0, "c": 0.7},
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


@pytest.mark.parametrize("start", [2**20, 2**40, 2**60])
@pytest.mark.parametrize("shares", MIXTURES.values(), ids=MIXTURES)
def test_prefixes_far_out_keep_the_shares_within_two_samples(shares, start):
    order, parts = order_of(shares), exact(shares)
    for position in range(start, start + 300):
        for name in shares:
            assert abs(order.count_samples(name, position) - parts[name] * position) < 2


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 10**6), min_size=1, max_size=50).filter(sum), st.integers(0, 2**50)
)
def test_any_mixture_keeps_the_shares_within_two_samples(weights, start):
    shares = {f"s{i}": weight / sum(weights) for i, weight in enumerate(weights)}
    order, parts = order_of(shares), exact(shares)
    for position in itertools.chain(range(40), range(start, start + 20)):
        for name in shares:
            assert abs(order.count_samples(name, position) - parts[name] * position) < 2


@pytest.mark.parametrize("shares", MIXTURES.values(), ids=MIXTURES)
@pytest.mark.parametrize("start", [0, 2**41])
def test_counts_and_draws_agree(shares, start):
    order = order_of(shares)
    for position in range(start, start + 200):
        drawn = order[position].source
        for name in shares:
            step = order.count_samples(name, position + 1) - order.count_samples(name, position)
            assert step == (name == drawn)


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


def test_the_same_seed_repeats_and_another_does_not():
    shares = MIXTURES["24 unequal"]
    first, again, other = (order_of(shares, seed=seed) for seed in (1, 1, 2))
    positions = [*range(500), *range(2**40, 2**40 + 500)]
    assert [first[p] for p in positions] == [again[p] for p in positions]
    assert sum(first[p] == other[p] for p in positions) < 50  # ten are expected


def test_the_order_of_the_shares_in_the_recipe_has_no_effect():
    shares = MIXTURES["46 unequal"]
    turned = dict(reversed(shares.items()))
    samples = dict.fromkeys(shares, 1000)
    one = one_phase(shares, samples)
    two = one_phase(turned, samples)
    assert [one[p] for p in range(1000)] == [two[p] for p in range(1000)]


def test_numpy_positions_do_not_overflow():
    order = order_of(MIXTURES["46 unequal"])
    assert order[np.int64(2**40)] == order[2**40]
    assert order.count_samples("s1", np.int64(2**40)) == order.count_samples("s1", 2**40)


def test_a_source_without_a_share_is_never_counted():
    order = one_phase({"a": 1.0, "b": 0.0}, {"a": 3, "b": 0, "c": 5})
    assert (order.count_samples("b", 100), order.count_samples("c", 100)) == (0, 0)
    assert order[0] == SampleId("a", 0, order[0].index)


def test_a_negative_position_is_refused():
    with pytest.raises(IndexError, match="position -1 is before the first sample"):
        order_of({"a": 1.0})[-1]


def test_a_share_of_a_source_without_a_sample_is_refused():
    message = r"data\.shares\.empty: 0\.5 of the samples, but the source is shorter"
    with pytest.raises(RecipeError, match=message):
        one_phase({"a": 0.5, "empty": 0.5}, {"a": 5, "b": 5, "empty": 0})


def test_rounded_shares_are_accepted_and_scaled():
    shares = {"a": 0.3333334, "b": 0.3333333, "c": 0.3333334}
    order = order_of(shares)
    assert sum(order.count_samples(name, 10**12) for name in shares) == 10**12


def test_the_shares_at_a_position_are_those_of_its_phase_divided_by_their_sum():
    phases = [
        Phase(first_sample=0, shares={"a": 0.25, "b": 0.75}, path="data.shares"),
        Phase(first_sample=10, shares={"b": 0.3, "c": 0.7000001}, path="data.phases.end"),
    ]
    order = SampleOrder(phases=phases, samples={"a": 5, "b": 5, "c": 5}, seed=0)
    assert order.shares_at(0) == order.shares_at(9) == {"a": 0.25, "b": 0.75, "c": 0.0}
    late = order.shares_at(10)
    assert late == {"a": 0.0, "b": pytest.approx(0.3, abs=1e-6), "c": pytest.approx(0.7)}
    assert sum(late.values()) == pytest.approx(1, abs=1e-15)
