"""Guards of a run: which step may be taken, and how far a figure sticks out (median, MAD).

Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers, chapter 3: mean and standard
deviation would follow the very spikes that they are to find; half of a window may be spikes
before its median does. All ranks judge the same figures by the same state, so they agree.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from components.config.schema.monitoring import Action, Rule, SpikeRule
from components.config.schema.monitoring import GuardSection as Rules
from components.errors import RecipeError

Window = tuple[int, int]
# Of normal numbers the MAD is this part of the standard deviation: the third quartile.
NORMAL_MAD = 0.6744897501960817


def deviations(value: float, window: Sequence[float]) -> float:
    """Count the robust standard deviations of ``value`` above the median of ``window``.

    Where most figures of a window are its median, whatever else is infinitely far away.
    """
    middle = median(window)
    spread = median(abs(one - middle) for one in window) / NORMAL_MAD
    if spread:
        return (value - middle) / spread
    return math.copysign(math.inf, value - middle) if value != middle else 0.0


@dataclass(frozen=True, kw_only=True)
class StepVerdict:
    """Why a step must not be taken, and what to do; ``rule`` is the key below ``guard``."""

    rule: str
    action: Action
    cause: str
    evidence: Mapping[str, Any]


class StepGuard:
    """Judge steps by a recipe's rules; `state` and `load` carry it through checkpoints.

    ``scales_loss`` says that gradients which are no number are the loss scale's business.
    """

    def __init__(self, *, rules: Rules, scales_loss: bool) -> None:
        self._rules, self._scales_loss = rules, scales_loss
        self._figures: dict[str, list[float]] = {"loss": [], "gradient_norm": []}
        self._faults: dict[str, list[int]] = defaultdict(list)
        self._lowered: list[tuple[int, float]] = []  # until how many tokens, by which factor
        self.skipped: list[Window] = []  # of the run's order

    def judge(self, *, loss: float, gradient_norm: float | None) -> StepVerdict | None:
        """Find the first rule that the step breaks; the norm is None where nobody knows it."""
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

    def took(self, *, loss: float, gradient_norm: float) -> None:
        """Remember the figures of a step that was taken, as many as the rules ask for."""
        for name, value in (("loss", loss), ("gradient_norm", gradient_norm)):
            rule = getattr(self._rules, f"{name}_spike")
            if isinstance(rule, SpikeRule) and math.isfinite(value):
                self._figures[name] = [*self._figures[name], value][-rule.window_steps :]

    def note(self, verdict: StepVerdict, *, tokens: int, window: Window) -> None:
        """Count a bad step at ``tokens`` and do what needs no tensors.

        Raises:
            RecipeError: the rule's action is to stop, or it was broken too often.
        """
        rule: Rule = getattr(self._rules, verdict.rule)
        key = f"guard.{verdict.rule}"
        since = tokens - rule.within_tokens
        recent = [at for at in self._faults[verdict.rule] if at > since]
        self._faults[verdict.rule] = [*recent, tokens]
        way = "find the cause, then go on with resume=FOLDER"
        if verdict.action == "stop":
            raise RecipeError(key, verdict.cause, f"{way}, or set {key}.action")
        if len(recent) >= rule.most:
            raise RecipeError(
                f"{key}.most",
                f"{verdict.cause}, and it was so {len(recent)} times within "
                f"{rule.within_tokens:,} tokens",
                f"{way} and a larger {key}.most",
            )
        self.skipped.append(window)
        if verdict.action == "lower_lr":
            lower = self._rules.lower_lr
            self._lowered.append((tokens + lower.over_tokens, lower.factor))

    def lr_factor(self, tokens: int) -> float:
        return math.prod(factor for until, factor in self._lowered if tokens < until)

    def state(self) -> dict[str, Any]:
        """Give all of it as JSON has it; floats come back bit by bit."""
        return {
            "figures": {name: list(values) for name, values in self._figures.items()},
            "faults": {name: list(tokens) for name, tokens in self._faults.items()},
            "lowered": [list(one) for one in self._lowered],
            "skipped": [list(one) for one in self.skipped],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self.go_back(state)
        self._faults = defaultdict(list, {n: list(at) for n, at in state["faults"].items()})
        self._lowered = [(until, factor) for until, factor in state["lowered"]]
        self.skipped = [(first, count) for first, count in state["skipped"]]

    def go_back(self, state: Mapping[str, Any]) -> None:
        """Take the figures of a checkpoint; what was learnt since is kept."""
        self._figures = {name: list(values) for name, values in state["figures"].items()}

    def _judge_spike(self, name: str, value: float | None) -> StepVerdict | None:
        rule = getattr(self._rules, f"{name}_spike")
        if value is None or not isinstance(rule, SpikeRule):
            return None
        window = self._figures[name][-rule.window_steps :]
        if len(window) < rule.window_steps or not math.isfinite(value):
            return None
        if (found := deviations(value, window)) <= rule.deviations:
            return None
        return StepVerdict(
            rule=f"{name}_spike",
            action=rule.action,
            cause=f"{name.replace('_', ' ')} {value:.6g} is {found:.1f} robust deviations "
            f"above the median of {len(window)} steps",
            evidence={name: value, "deviations": found, "window_steps": len(window)},
        )
