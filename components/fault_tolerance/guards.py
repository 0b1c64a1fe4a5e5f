"""Step guard: reject steps with non-finite or outlying loss or gradient norm (median, MAD).

Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers, chapter 3: spikes distort the mean
and the standard deviation, but the median only if half of the window is spikes. All ranks judge
the same figures with the same state, so they agree.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from components.config.schema.monitoring import GuardAction, Rule, SpikeRule
from components.config.schema.monitoring import GuardSection as Rules
from components.errors import RecipeError

SampleWindow = tuple[int, int]
# MAD over standard deviation of a normal distribution: its third quartile.
NORMAL_MAD = 0.6744897501960817


def compute_deviations(value: float, window: Sequence[float]) -> float:
    """Return the robust standard deviations of ``value`` above the median of ``window``.

    If most values of the window equal its median, any other value is infinitely far away.
    """
    middle = median(window)
    spread = median(abs(figure - middle) for figure in window) / NORMAL_MAD
    if spread:
        return (value - middle) / spread
    return math.copysign(math.inf, value - middle) if value != middle else 0.0


@dataclass(frozen=True, kw_only=True)
class StepVerdict:
    """Reason to reject a step, and the action. ``rule`` is the key in the section ``guard``."""

    rule: str
    action: GuardAction
    cause: str
    evidence: Mapping[str, Any]


class StepGuard:
    """Judge steps by the recipe's rules. `state` and `load_state` save and restore the guard.

    With ``scales_loss``, the loss scale handles non-finite gradients, not the guard.
    """

    def __init__(self, *, rules: Rules, scales_loss: bool) -> None:
        self._rules, self._scales_loss = rules, scales_loss
        self._figures: dict[str, list[float]] = {"loss": [], "gradient_norm": []}
        self._faults: dict[str, list[int]] = defaultdict(list)
        self._lowered: list[tuple[int, float]] = []  # (end in tokens, factor)
        self.skipped: list[SampleWindow] = []  # (first, count) in the sample order

    def check_step(self, *, loss: float, gradient_norm: float | None) -> StepVerdict | None:
        """Return the verdict of the first rule that the step breaks. The norm may be unknown.

        In that case ``gradient_norm`` is None, and no rule for it applies.
        """
        figures = {"loss": loss, "gradient_norm": gradient_norm}
        bad = {
            name: str(value)
            for name, value in figures.items()
            if not (value is None or math.isfinite(value))
            and not (self._scales_loss and name == "gradient_norm")
        }
        if bad:
            rule = self._rules.non_finite
            if isinstance(rule, str):
                return None
            cause = f"{' and '.join(bad).replace('_', ' ')} not finite"
            return StepVerdict(rule="non_finite", action=rule.action, cause=cause, evidence=bad)
        spikes = (self._judge_spike(name, value) for name, value in figures.items())
        return next((verdict for verdict in spikes if verdict is not None), None)

    def record_step(self, *, loss: float, gradient_norm: float) -> None:
        """Add the figures of an accepted step to the windows of the rules."""
        for name, value in (("loss", loss), ("gradient_norm", gradient_norm)):
            rule = getattr(self._rules, f"{name}_spike")
            if isinstance(rule, SpikeRule) and math.isfinite(value):
                self._figures[name] = [*self._figures[name], value][-rule.window_steps :]

    def record_bad_step(
        self, verdict: StepVerdict, *, tokens: int, window: SampleWindow
    ) -> None:
        """Count a bad step at ``tokens``, skip ``window``, and maybe lower the learning rate.

        If the rule's action is to stop, or the rule was broken too often, raise a RecipeError.
        """
        rule: Rule = getattr(self._rules, verdict.rule)
        key = f"guard.{verdict.rule}"
        since = tokens - rule.within_tokens
        recent = [at for at in self._faults[verdict.rule] if at > since]
        self._faults[verdict.rule] = [*recent, tokens]
        remedy = "find the cause, then resume with resume=FOLDER"
        if verdict.action == "stop":
            raise RecipeError(key, verdict.cause, f"{remedy}, or set {key}.action")
        if len(recent) >= rule.most:
            raise RecipeError(
                f"{key}.most",
                f"{verdict.cause}; the rule fired {len(recent)} times within "
                f"{rule.within_tokens:,} tokens",
                f"{remedy} and a larger {key}.most",
            )
        self.skipped.append(window)
        if verdict.action == "lower_lr":
            lower = self._rules.lower_lr
            self._lowered.append((tokens + lower.over_tokens, lower.factor))

    def lr_factor(self, tokens: int) -> float:
        return math.prod(factor for until, factor in self._lowered if tokens < until)

    def export_state(self) -> dict[str, Any]:
        """Return the guard's state as JSON types. Floats survive a round trip exactly."""
        return {
            "figures": {name: list(values) for name, values in self._figures.items()},
            "faults": {name: list(tokens) for name, tokens in self._faults.items()},
            "lowered": [list(entry) for entry in self._lowered],
            "skipped": [list(window) for window in self.skipped],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.go_back(state)
        self._faults = defaultdict(list, {n: list(at) for n, at in state["faults"].items()})
        self._lowered = [(until, factor) for until, factor in state["lowered"]]
        self.skipped = [(first, count) for first, count in state["skipped"]]

    def go_back(self, state: Mapping[str, Any]) -> None:
        """Restore only the figures of a checkpoint; keep faults, lowered rates and windows."""
        self._figures = {name: list(values) for name, values in state["figures"].items()}

    def _judge_spike(self, name: str, value: float | None) -> StepVerdict | None:
        rule = getattr(self._rules, f"{name}_spike")
        if value is None or not isinstance(rule, SpikeRule):
            return None
        window = self._figures[name][-rule.window_steps :]
        if len(window) < rule.window_steps or not math.isfinite(value):
            return None
        if (distance := compute_deviations(value, window)) <= rule.deviations:
            return None
        return StepVerdict(
            rule=f"{name}_spike",
            action=rule.action,
            cause=f"{name.replace('_', ' ')} {value:.6g} is {distance:.1f} robust deviations "
            f"above the median of {len(window)} steps",
            evidence={name: value, "deviations": distance, "window_steps": len(window)},
        )
