import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from components.data.mixture import limit_repeats, tempered_shares
from components.data.order import Phase, SampleOrder
from components.errors import RecipeError

TOKENS = {"en": 8_000_000, "de": 1_000_000, "mt": 8_000}


def test_temperatures_of_one_three_and_infinity():
    shares = tempered_shares(TOKENS, 1.0)
    assert shares == pytest.approx({n: t / 9_008_000 for n, t in TOKENS.items()})
    roots = {"en": 200 / 320, "de": 100 / 320, "mt": 20 / 320}
    assert tempered_shares(TOKENS, 3.0) == pytest.approx(roots)
    shares = tempered_shares({"a": 4 * 10**12, "b": 1}, 1e9)
    assert shares == pytest.approx({"a": 0.5, "b": 0.5})


def one_phase(**shares: float) -> list[Phase]:
    return [Phase(first_sample=0, shares=shares, path="data.shares")]


def limited(phases, samples, most_epochs, total, on_exhausted="redistribute"):
    given = {"samples": samples, "most_epochs": most_epochs, "total_samples": total}
    return limit_repeats(phases, on_exhausted=on_exhausted, **given)


def test_a_surplus_is_divided_by_the_other_shares():
    phases = one_phase(a=0.9, b=0.1)
    assert limited(phases, {"a": 50, "b": 50}, {"a": 2, "b": 1}, 100) == tuple(phases)
    three = one_phase(a=0.5, b=0.4, c=0.1)
    (phase,) = limited(three, {"a": 101, "b": 900, "c": 900}, {"a": 2}, 1000)
    assert phase.shares == pytest.approx({"a": 0.2, "b": 0.64, "c": 0.16})
    samples = {"a": 101, "b": 451, "c": 10_000}
    (phase,) = limited(three, samples, {"a": 2, "b": 1}, 1000)
    assert phase.shares == pytest.approx({"a": 0.2, "b": 0.449, "c": 0.351})


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 60), min_size=2, max_size=6),
    st.lists(st.integers(10, 400), min_size=6, max_size=6),
    st.lists(st.integers(1, 4), min_size=6, max_size=6),
    st.integers(50, 1500),
)
def test_no_source_exceeds_its_limit_of_epochs(weights, sizes, epochs, total):
    names = [f"s{i}" for i in range(len(weights))]
    shares = {n: w / sum(weights) for n, w in zip(names, weights, strict=True)}
    turned = dict(zip(names, reversed(shares.values()), strict=True))
    phases = [
        Phase(first_sample=0, shares=shares, path="data.shares"),
        Phase(first_sample=total // 2, shares=turned, path="x"),
    ]
    samples = dict(zip(names, sizes[: len(names)], strict=True))
    most = dict(zip(names[1:], epochs, strict=False))  # the first source has no limit
    try:
        kept = limited(phases, samples, most, total)
    except RecipeError:
        assume(False)
        raise
    order = SampleOrder(phases=kept, samples=samples, seed=0)
    for name, limit in most.items():
        assert order.count_samples(name, total) <= limit * samples[name]
    assert sum(order.count_samples(name, total) for name in names) == total


def test_a_source_that_would_repeat_too_often_is_refused():
    message = (
        r"data\.sources\.a\.most_epochs: 4, but its shares read the source 5\.00 times over the"
        r" budget\n  set its share to at most 0\.400000.*data\.on_exhausted=redistribute"
    )
    with pytest.raises(RecipeError, match=message):
        limited(one_phase(a=0.5, b=0.5), {"a": 100, "b": 900}, {"a": 4}, 1000, "refuse")
    message = r"data\.shares: all sources reach most_epochs"
    with pytest.raises(RecipeError, match=message):
        limited(one_phase(a=0.5, b=0.5), {"a": 100, "b": 100}, {"a": 4, "b": 4}, 1000)
    phases = [
        Phase(first_sample=0, shares={"a": 0.1, "b": 0.9}, path="data.shares"),
        Phase(first_sample=800, shares={"a": 1.0, "b": 0.0}, path="data.phases.end.shares"),
    ]
    with pytest.raises(RecipeError, match=r"a\.most_epochs: 1, but .* 2\.33 times over"):
        limited(phases, {"a": 120, "b": 2000}, {"a": 1}, 1000, "refuse")
