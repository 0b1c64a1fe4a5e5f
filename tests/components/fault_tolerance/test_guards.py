"""What guards find, what they remember, and when they give up."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import median_abs_deviation

from components.config.schema.monitoring import GuardSection as Rules
from components.errors import RecipeError
from components.fault_tolerance.guards import StepGuard, StepVerdict, compute_deviations

LIMIT = {"most": 2, "within_tokens": 100}
SPIKES = {**LIMIT, "window_steps": 8, "deviations": 6.0}
WINDOW = (40, 8)


def guard(*, scales_loss: bool = False, **rules: Any) -> StepGuard:
    tree = {
        "non_finite": {"action": "skip", **LIMIT},
        "loss_spike": "none",
        "gradient_norm_spike": "none",
        "roll_back": {"skip_steps": 1},
        "lower_lr": {"factor": 0.5, "over_tokens": 50},
        "inject": [],
    }
    return StepGuard(rules=Rules.model_validate(tree | rules), scales_loss=scales_loss)


def learn(one: StepGuard, steps: int = 8) -> None:
    for step in range(steps):
        one.record_step(loss=3.0 - 0.01 * step, gradient_norm=1.0 + 0.1 * (step % 3))


@pytest.mark.parametrize(
    ("loss", "norm", "cause"),
    [
        (math.nan, 1.0, "loss not finite"),
        (2.0, math.inf, "gradient norm not finite"),
        (math.inf, math.nan, "loss and gradient norm not finite"),
    ],
)
def test_a_value_that_is_not_finite_is_bad(loss: float, norm: float, cause: str) -> None:
    verdict = guard().check_step(loss=loss, gradient_norm=norm)
    assert verdict is not None
    assert (verdict.rule, verdict.action, verdict.cause) == ("non_finite", "skip", cause)
    json.dumps(verdict.evidence, allow_nan=False)
    assert guard(non_finite="none").check_step(loss=loss, gradient_norm=norm) is None


def test_an_overflow_is_accepted_and_a_nan_loss_is_bad() -> None:
    scaled = guard(scales_loss=True, gradient_norm_spike={"action": "skip", **SPIKES})
    learn(scaled)
    assert scaled.check_step(loss=2.0, gradient_norm=math.inf) is None
    assert scaled.check_step(loss=math.nan, gradient_norm=math.inf) is not None


@pytest.mark.parametrize(
    ("figure", "loss", "norm"), [("loss", 4.0, 1.0), ("gradient_norm", 2.9, 3.0)]
)
def test_a_value_far_above_the_window_is_bad(figure: str, loss: float, norm: float) -> None:
    rules: dict[str, Any] = {f"{figure}_spike": {"action": "roll_back", **SPIKES}}
    one = guard(**rules)
    learn(one, steps=7)
    assert one.check_step(loss=loss, gradient_norm=norm) is None  # too few steps to judge by
    learn(one, steps=1)
    verdict = one.check_step(loss=loss, gradient_norm=norm)
    assert verdict is not None
    assert (verdict.rule, verdict.action) == (f"{figure}_spike", "roll_back")
    assert verdict.evidence["deviations"] > 6
    assert one.check_step(loss=2.0, gradient_norm=0.1) is None  # below is never bad
    assert one.check_step(loss=2.95, gradient_norm=None) is None


def test_only_the_last_steps_are_remembered() -> None:
    one = guard(loss_spike={"action": "skip", **SPIKES})
    learn(one, steps=30)
    assert len(one.export_state()["figures"]["loss"]) == 8
    assert one.export_state()["figures"]["gradient_norm"] == []


def bad(action: str, rule: str = "non_finite") -> StepVerdict:
    return StepVerdict(rule=rule, action=action, cause="loss not finite", evidence={})  # type: ignore[arg-type]  # any of the words


def test_a_rule_that_fires_too_often_within_its_tokens_stops_the_run() -> None:
    one = guard()
    for tokens in (0, 60):
        one.record_bad_step(bad("skip"), tokens=tokens, window=WINDOW)
    one.record_bad_step(bad("skip"), tokens=120, window=WINDOW)  # the first is 120 tokens ago
    said = (
        r"guard\.non_finite\.most: loss not finite; the rule fired 2 times within 100 tokens\n"
        "  find the cause, then resume with resume=FOLDER and a larger"
    )
    with pytest.raises(RecipeError, match=said):
        one.record_bad_step(bad("skip"), tokens=120, window=WINDOW)


def test_the_action_stop_stops_at_once() -> None:
    said = r"guard\.non_finite: loss not finite\n.*set guard\.non_finite\.act"
    with pytest.raises(RecipeError, match=said):
        guard().record_bad_step(bad("stop"), tokens=0, window=WINDOW)


def test_a_spike_relaunches_nothing() -> None:
    with pytest.raises(
        ValidationError, match="Input should be 'skip', 'roll_back', 'lower_lr'"
    ):
        guard(loss_spike={"action": "relaunch", **SPIKES})
    relaunching = guard(non_finite={"action": "relaunch", **LIMIT})
    verdict = relaunching.check_step(loss=math.nan, gradient_norm=None)
    assert verdict is not None
    assert verdict.action == "relaunch"


def test_a_lowered_rate_comes_back_after_its_tokens() -> None:
    one = guard()
    one.record_bad_step(bad("lower_lr"), tokens=100, window=WINDOW)
    one.record_bad_step(bad("lower_lr"), tokens=120, window=WINDOW)
    factors = [one.lr_factor(tokens) for tokens in (100, 149, 150, 169, 170)]
    assert factors == [0.25, 0.25, 0.5, 0.5, 1.0]


def test_its_state_is_unchanged_by_json() -> None:
    rules: dict[str, Any] = {"loss_spike": {"action": "skip", **SPIKES}}
    one, other = guard(**rules), guard(**rules)
    for step in range(8):
        one.record_step(loss=math.pi / (step + 1), gradient_norm=1.0)
    one.record_bad_step(bad("lower_lr"), tokens=100, window=WINDOW)
    other.load_state(json.loads(json.dumps(one.export_state())))
    assert other.export_state() == one.export_state()
    assert other.skipped == [WINDOW]
    assert other.lr_factor(120) == 0.5


def test_a_rollback_restores_values_and_keeps_skipped_windows() -> None:
    one = guard(loss_spike={"action": "roll_back", **SPIKES})
    learn(one)
    saved = one.export_state()
    learn(one, steps=3)
    one.record_bad_step(bad("roll_back", "loss_spike"), tokens=90, window=WINDOW)
    one.go_back(saved)
    assert one.export_state()["figures"] == saved["figures"]
    assert one.skipped == [WINDOW]
    assert one.export_state()["faults"] == {"loss_spike": [90]}


NUMBERS = st.floats(min_value=-1e6, max_value=1e6, allow_nan=False)


@given(st.lists(NUMBERS, min_size=8, max_size=64), NUMBERS)
def test_deviations_equal_those_of_scipy(window: list[float], value: float) -> None:
    spread = median_abs_deviation(window, scale="normal")
    found = compute_deviations(value, window)
    if spread > 1e-9:
        expected = (value - np.median(window)) / spread
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_spike_is_found_among_a_third_of_spikes() -> None:
    """With mean and standard deviation the same spike is 1.4 deviations away."""
    window = [2.0 + 0.01 * (i % 7) for i in range(40)] + [9.0] * 20
    assert compute_deviations(9.0, window) > 100
    assert (9.0 - np.mean(window)) / np.std(window) < 2


@pytest.mark.parametrize(("value", "expected"), [(2.0, 0.0), (2.5, math.inf), (1.5, -math.inf)])
def test_a_value_differs_infinitely_from_equal_values(value, expected: float) -> None:
    assert compute_deviations(value, [2.0] * 10 + [3.0] * 3) == expected
