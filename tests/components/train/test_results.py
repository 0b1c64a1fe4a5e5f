"""The held-out figures of a run: means, the unigram beside them, and the trend at the end."""

import json
import math

import pytest

from components.train.fit import strict, summarize_held_out

UNIGRAM = {"a": 6.0, "b": 8.0}


def losses(*means: float) -> list[tuple[int, float, dict[str, float]]]:
    return [
        (index * 100, mean, {"a": mean - 1, "b": mean + 1}) for index, mean in enumerate(means)
    ]


def test_first_final_and_unigram_are_means_over_sources() -> None:
    found = summarize_held_out(losses(9.0, 8.0, 7.0, 6.5, 6.2), UNIGRAM)
    assert (found["first"], found["final"], found["unigram"]) == (9.0, 6.2, 7.0)
    assert found["by_source"] == {"a": pytest.approx(5.2), "b": pytest.approx(7.2)}


def test_a_loss_that_falls_to_the_end_is_not_rising() -> None:
    found = summarize_held_out(losses(9.0, 8.0, 7.0, 6.5, 6.2), UNIGRAM)
    assert not found["rising"]
    assert found["slope_last_quarter"] < 0


def test_a_loss_that_turns_in_the_last_quarter_is_rising() -> None:
    assert summarize_held_out(losses(9.0, 7.0, 6.0, 6.1, 6.4), UNIGRAM)["rising"]


def test_an_early_rise_does_not_count() -> None:
    assert not summarize_held_out(losses(6.0, 9.0, 8.0, 7.5, 7.0), UNIGRAM)["rising"]


def test_a_run_without_evaluations_has_no_figures() -> None:
    assert summarize_held_out([], UNIGRAM) == {}


def test_where_the_last_losses_are_not_finite_nobody_knows_whether_they_rise() -> None:
    found = summarize_held_out(losses(9.0, 8.0, 7.0, math.nan, math.nan), UNIGRAM)
    assert found["rising"] is None
    assert summarize_held_out(losses(math.inf, 8.0, 7.0, 6.5, 6.2), UNIGRAM)["rising"] is False


def test_numbers_that_are_not_finite_are_null_and_their_keys_are_listed() -> None:
    found = strict({
        "loss": math.inf,
        "steps": 3,
        "held_out": {"final": math.nan, "first": 1.5},
    })
    assert json.loads(json.dumps(found, allow_nan=False)) == {
        "loss": None,
        "steps": 3,
        "held_out": {"final": None, "first": 1.5},
        "not_finite": ["loss", "held_out.final"],
    }
