"""The held-out figures of a run: both means, the unigram beside them, the trend at the end."""

import math

import pytest

from components.train.held_out import Evaluation, summarize_held_out

UNIGRAM = {"a": 6.0, "b": 8.0}
SHARES = {"a": 0.75, "b": 0.25}


def taken(*means: float) -> list[Evaluation]:
    """Evaluations a step of 100 tokens apart, the first before training."""
    return [
        Evaluation(step, step * 100, {"a": mean - 1, "b": mean + 1})
        for step, mean in enumerate(means)
    ]


def test_each_figure_has_a_weighted_and_a_plain_mean() -> None:
    found = summarize_held_out(taken(9.0, 8.0, 7.0, 6.5, 6.2), SHARES, UNIGRAM)
    assert (found["step"], found["tokens"]) == (4, 400)
    assert (found["first_unweighted"], found["final_unweighted"]) == (9.0, pytest.approx(6.2))
    assert (found["first"], found["final"]) == (8.5, pytest.approx(5.7))
    assert (found["unigram"], found["unigram_unweighted"]) == (6.5, 7.0)
    assert found["by_source"] == {"a": pytest.approx(5.2), "b": pytest.approx(7.2)}
    assert found["shares"] == SHARES


def test_weighted_mean_and_trend_use_the_shares_of_the_mixture():
    evaluations = [Evaluation(1, 100, {"a": 2.0, "b": math.nan})]
    found = summarize_held_out(evaluations, {"a": 1.0, "b": 0.0}, UNIGRAM)
    assert found["final"] == 2.0
    assert math.isnan(found["final_unweighted"])
    losses = [{"a": 3.0, "b": 8.0}, {"a": 3.5, "b": 5.0}]
    evaluations = [Evaluation(at, at, one) for at, one in enumerate(losses, 9)]
    assert summarize_held_out(evaluations, {"a": 0.9, "b": 0.1}, UNIGRAM)["rising"]


def test_the_loss_before_training_has_no_final_value_and_no_trend() -> None:
    found = summarize_held_out(taken(9.0), SHARES, UNIGRAM)
    assert found["first"] == 8.5
    unknown = ("step", "tokens", "final", "final_unweighted", "slope_last_quarter", "rising")
    assert [found[key] for key in unknown] == [None] * 6
    assert found["by_source"] == {}


@pytest.mark.parametrize(
    ("means", "rising"),
    [
        *(((9.0, 8.0), None), ((9.0, 8.0, 9.0), None)),  # one evaluation in the last quarter
        ((9.0, 8.0, 7.0, 6.5, 6.2), False),
        ((9.0, 7.0, 6.0, 6.1, 6.4), True),
        ((6.0, 9.0, 8.0, 7.5, 7.0), False),  # an early rise does not count
        ((9.0, 8.0, 7.0, math.nan, math.nan), None),
        ((math.inf, 8.0, 7.0, 6.5, 6.2), False),
    ],
)
def test_the_trend_is_computed_over_the_last_quarter(means, rising):
    found = summarize_held_out(taken(*means), SHARES, {})
    assert found["rising"] is rising
    assert rising is None or (found["slope_last_quarter"] > 0) == rising
    assert (found["unigram"], found["unigram_unweighted"]) == (None, None)
    assert summarize_held_out([], SHARES, UNIGRAM) == {}
