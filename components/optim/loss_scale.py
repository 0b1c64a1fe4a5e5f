"""Dynamic loss scaling: keep float16 gradients between underflow and overflow.

The rule is DeepSpeed's ``DynamicLossScaler`` with ``consecutive_hysteresis`` off, step for
step, after https://arxiv.org/abs/1710.03740, section 3.2. Its quirk is kept: the first growth
after an overflow, or after the start, comes with good step ``window + 1``, not ``window``.
"""

from collections.abc import Mapping
from typing import Any, TypedDict

FACTOR = 2.0


class LossScaleState(TypedDict):
    """What a checkpoint keeps; plain numbers, as JSON has them."""

    scale: float
    hysteresis_left: int
    good_steps: int


class LossScale:
    """Multiply the loss by ``scale``: halve it on overflow, double it after a quiet window.

    ``update`` must hear the same on all ranks. The first ``hysteresis - 1`` overflows since the
    last growth leave the scale as it is. At ``minimum`` further overflows change nothing. What
    the four settings may be is checked with the recipe.
    """

    def __init__(self, *, initial: float, window: int, hysteresis: int, minimum: float) -> None:
        self._window, self._hysteresis, self._minimum = window, hysteresis, minimum
        self._state = LossScaleState(scale=initial, hysteresis_left=hysteresis, good_steps=0)

    @property
    def scale(self) -> float:
        return self._state["scale"]

    def update(self, overflow: bool) -> None:
        """Note how a step went, after it was taken or skipped."""
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
