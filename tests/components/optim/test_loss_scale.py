"""The loss scale against a table of DeepSpeed's steps and against its rule."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from components.config.schema.sections import LossScaleSection
from components.optim.loss_scale import LossScale

BLOOM: dict[str, Any] = {"initial": 4096.0, "window": 500, "hysteresis": 2, "minimum": 1.0}

# Window 3, hysteresis 2, minimum 1, by hand: step, overflow, and the scale after it.
TABLE = [
    ("first good steps: growth waits for one more than the window", False, 8.0),
    ("second", False, 8.0),
    ("third", False, 8.0),
    ("fourth: after three good steps", False, 16.0),
    ("fifth", False, 16.0),
    ("sixth", False, 16.0),
    ("seventh: without an overflow the next window is exact", False, 32.0),
    ("hysteresis swallows the first overflow", True, 32.0),
    ("the second halves", True, 16.0),
    ("a good step does not refill the hysteresis", False, 16.0),
    ("so this overflow halves at once", True, 8.0),
    ("good", False, 8.0),
    ("good", False, 8.0),
    ("good", False, 8.0),
    ("growth refills the hysteresis", False, 16.0),
    ("which swallows again", True, 16.0),
    ("halves", True, 8.0),
    ("halves", True, 4.0),
    ("halves", True, 2.0),
    ("halves", True, 1.0),
    ("not below the minimum", True, 1.0),
]


def by_iterations(history: list[bool], settings: dict[str, float]) -> float:
    """DeepSpeed's rule with its own variables: iterations and the last overflow."""
    scale, left = settings["initial"], settings["hysteresis"]
    overflows = [-1]
    for iteration, overflow in enumerate(history):
        quiet = iteration - overflows[-1] - 1
        if overflow:
            overflows.append(iteration)
            scale = scale if left > 1 else max(scale / 2, settings["minimum"])
            left = max(left - 1, 1)
        elif quiet > 0 and quiet % settings["window"] == 0:
            scale, left = scale * 2, settings["hysteresis"]
    return scale


def test_every_step_of_the_table_equals_deepspeed() -> None:
    scale = LossScale(initial=8.0, window=3, hysteresis=2, minimum=1.0)
    for what, overflow, after in TABLE:
        scale.update_scale(overflow)
        assert scale.current_scale == after, what


def test_blooms_scale_doubles_after_501_good_steps_and_then_every_500() -> None:
    scale = LossScale(**BLOOM)
    seen = []
    for _ in range(1001):
        scale.update_scale(overflow=False)
        seen.append(scale.current_scale)
    assert (seen[499], seen[500]) == (4096.0, 8192.0)
    assert (seen[999], seen[1000]) == (8192.0, 16384.0)


@given(
    history=st.lists(st.booleans() | st.just(False), max_size=60),
    window=st.integers(1, 5),
    hysteresis=st.integers(1, 4),
)
def test_any_history_gives_deepspeeds_scale(history, window, hysteresis):
    settings: dict[str, Any] = {"window": window, "hysteresis": hysteresis}
    settings |= {"initial": 64.0, "minimum": 0.5}
    scale = LossScale(**settings)
    for overflow in history:
        scale.update_scale(overflow)
    assert scale.current_scale == by_iterations(history, settings)


@given(before=st.lists(st.booleans(), max_size=20), after=st.lists(st.booleans(), max_size=20))
def test_a_scale_resumes_from_its_state_in_json(before: list[bool], after: list[bool]) -> None:
    settings: dict[str, Any] = {"initial": 64.0, "window": 2, "hysteresis": 2, "minimum": 0.5}
    whole, resumed = LossScale(**settings), LossScale(**settings)
    for overflow in before:
        whole.update_scale(overflow)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    for overflow in after:
        whole.update_scale(overflow)
        resumed.update_scale(overflow)
    assert resumed.state_dict() == whole.state_dict()


def test_a_saved_state_does_not_change_with_its_scale() -> None:
    scale = LossScale(**BLOOM)
    saved = scale.state_dict()
    scale.update_scale(overflow=False)
    assert saved["good_steps"] == 0


def test_the_recipe_s_schema_refuses_values_out_of_range() -> None:
    for name in BLOOM:
        for value in (math.nan, math.inf, 0.0) if name != "initial" else (math.nan, math.inf):
            with pytest.raises(ValidationError, match=name):
                LossScaleSection.model_validate(BLOOM | {name: value})
