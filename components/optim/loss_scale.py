"""Dynamic loss scaling: float16 gradients between underflow and overflow.

The rule is step for step DeepSpeed's ``DynamicLossScaler`` with ``consecutive_hysteresis`` off,
after https://arxiv.org/abs/1710.03740, section 3.2. As there, the first doubling after an
overflow, or after the start, is at good step ``window + 1``, not ``window``.
"""

from collections.abc import Mapping
from typing import Any, TypedDict

FACTOR = 2.0


class LossScaleState(TypedDict):
    """State of the loss scale in a checkpoint: plain numbers, for JSON."""

    scale: float
    hysteresis_left: int
    good_steps: int


class LossScale:
    """Loss scale: halves on overflow down to ``minimum``, doubles after ``window`` good steps.

    ``update`` must get the same argument on all ranks. The first ``hysteresis - 1`` overflows
    since the last doubling do not change the scale.
    """

    def __init__(self, *, initial: float, window: int, hysteresis: int, minimum: float) -> None:
        self._window, self._hysteresis, self._minimum = window, hysteresis, minimum
        self._state = LossScaleState(scale=initial, hysteresis_left=hysteresis, good_steps=0)

    @property
    def current_scale(self) -> float:
        return self._state["scale"]

    def update_scale(self, overflow: bool) -> None:
        """Update the scale after a step that was taken or, on ``overflow``, skipped."""
        state = self._state
        if overflow:
            state["good_steps"] = 0
            if state["hysteresis_left"] > 1:
                state["hysteresis_left"] -= 1
            else:
                state["scale"] = max(state["scale"] / FACTOR, self._minimum)
            return
        if state["good_steps"] and state["good_steps"] % self._window == 0:
            state["scale"] *= FACTOR
            state["hysteresis_left"] = self._hysteresis
        state["good_steps"] += 1

    def state_dict(self) -> LossScaleState:
        return self._state.copy()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._state = LossScaleState(
            scale=state["scale"],
            hysteresis_left=state["hysteresis_left"],
            good_steps=state["good_steps"],
        )
