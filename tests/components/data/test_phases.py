from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.data.order import Phase, SampleId, SampleOrder
from components.errors import RecipeError

SAMPLES = {"a": 7, "b": 40, "c": 3, "d": 90}


def phase(first_sample: int, **shares: float) -> Phase:
    return Phase(first_sample=first_sample, shares=shares, path=f"data.phases.{first_sample}")


def exact(shares) -> dict[str, Fraction]:
    written = {name: Fraction(repr(share)) for name, share in shares.items()}
    return {name: share / sum(written.values()) for name, share in written.items()}


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
def test_a_source_repeats_nothing_before_all_of_it_was_seen_whatever_the_phase(run):
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
def test_counts_add_up_to_what_was_drawn(run):
    phases, order = run
    counts: Counter[str] = Counter()
    for position in range(phases[-1].first_sample + 60):
        assert all(order.count_samples(name, position) == counts[name] for name in SAMPLES)
        counts[order[position].source] += 1


def test_the_samples_before_a_phase_are_those_without_it():
    one = SampleOrder(phases=[phase(0, a=0.2, d=0.8)], samples=SAMPLES, seed=3)
    two = SampleOrder(
        phases=[phase(0, a=0.2, d=0.8), phase(500, b=1.0)], samples=SAMPLES, seed=3
    )
    assert [one[p] for p in range(500)] == [two[p] for p in range(500)]
    assert {two[p].source for p in range(500, 600)} == {"b"}


def test_what_was_drawn_is_put_beside_what_was_promised():
    order = SampleOrder(
        phases=[phase(0, a=0.5, d=0.5), phase(100, d=1.0)], samples=SAMPLES, seed=0
    )
    drawn = order.summarize_draws(200)
    assert {name: one.promised_share for name, one in drawn.items()} == {
        "a": 0.25,
        "b": 0,
        "c": 0,
        "d": 0.75,
    }
    assert {name: one.samples for name, one in drawn.items()} == Counter(
        order[p].source for p in range(200)
    ) | {"b": 0, "c": 0}
    assert drawn["d"].epochs == drawn["d"].samples / 90
    assert order.summarize_draws(50)["d"].promised_share == 0.5
    assert order.summarize_draws(0)["d"].share == 0


def test_phases_that_do_not_follow_one_another_are_refused():
    phases = [phase(0, a=1.0), phase(5, a=1.0), phase(5, b=1.0)]
    with pytest.raises(RecipeError, match=r"phases\.5: starts at sample 5, not after"):
        SampleOrder(phases=phases, samples=SAMPLES, seed=0)
