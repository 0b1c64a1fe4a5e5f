"""AdEMAMix: AdamW with a second, slow mean of the gradients.

Warm-ups count tokens: the train step sets ``tokens`` to the count at the end of a step. With a
constant batch size this equals the published rule, which counts steps.
"""

import math
from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from components.optim.adamw import can_fuse, parameter_groups
from components.ranges import BelowOne, NonNegative, Positive, Tokens

_SLICE_NUMBERS = 2**24  # elements of a weight per temporary: 64 MiB more memory


class AdEMAMix(torch.optim.AdamW):
    """AdEMAMix, https://arxiv.org/abs/2409.03137, algorithm 1.

    The fast mean (beta1), the squares and all other settings are AdamW's. The slow mean,
    ``beta3 x slow + (1 - beta3) x g``, has no bias correction; ``alpha`` times the slow mean is
    added to the fast mean. Over their ``warmup_tokens``, alpha rises linearly from 0, and beta3
    from beta1 with linear half-life (section 3). With ``alpha`` 0, the update is AdamW.
    """

    tokens = 0  # trained tokens at the end of the next step

    def __init__(
        self,
        *,
        parameters: Iterable[tuple[str, nn.Parameter]],
        lr: Positive,
        beta1: BelowOne,
        beta2: BelowOne,
        beta3: BelowOne,
        alpha: NonNegative,
        alpha_warmup_tokens: Tokens,
        beta3_warmup_tokens: Tokens,
        eps: Positive,
        weight_decay: NonNegative,
        decay: Literal["matrices", "all"],
        clip_norm: Positive,
        clip_after_tokens: Tokens,
    ) -> None:
        groups = parameter_groups(parameters, decay, weight_decay=weight_decay)
        super().__init__(groups, lr, (beta1, beta2), eps, fused=can_fuse(groups))
        self._fast, self._beta2, self._slow = beta1, beta2, beta3
        self._alpha = alpha
        self._alpha_warmup, self._slow_warmup = alpha_warmup_tokens, beta3_warmup_tokens

    @property
    def slow_weight(self) -> float:
        """The weight of the slow mean at this step."""
        return self._alpha * _done(self.tokens, self._alpha_warmup)

    @property
    def beta3(self) -> float:
        """The slow mean's decay rate at this step."""
        done = _done(self.tokens, self._slow_warmup)
        if done == 1.0:
            return self._slow
        steps = (1.0 - done) * _half_life(self._fast) + done * _half_life(self._slow)
        return math.pow(0.5, 1.0 / (steps + 1.0))

    @torch.no_grad()
    def step(  # type: ignore[override]  # torch overloads it; one signature answers both
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Update by AdamW, then by the slow mean; skip parameters without a gradient."""
        loss: float | None = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    rate = group["lr"] * self.slow_weight
                    self._add_slow(parameter, parameter.grad, rate, eps=group["eps"])
        return loss

    def _add_slow(
        self, parameter: nn.Parameter, gradient: Tensor, rate: float, *, eps: float
    ) -> None:
        state = self.state[parameter]
        if "exp_avg_slow" not in state:
            state["exp_avg_slow"] = torch.zeros_like(parameter)
        slow: Tensor = state["exp_avg_slow"].lerp_(gradient, 1.0 - self.beta3)
        # The step counter stays on the device: reading it would synchronize.
        corrected = 1.0 - self._beta2 ** state["step"].double()
        rows = max(1, _SLICE_NUMBERS // max(1, parameter[:1].numel()))
        updated, squares = parameter.detach(), state["exp_avg_sq"]
        for weight, mean, square in zip(
            *(moment.split(rows) for moment in (updated, slow, squares)), strict=True
        ):
            weight.addcdiv_(mean, square.div(corrected).sqrt_().add_(eps), value=-rate)


def _done(tokens: int, warmup_tokens: int) -> float:
    return tokens / warmup_tokens if tokens < warmup_tokens else 1.0


def _half_life(beta: float) -> float:
    """Return a mean's half-life in steps, minus 1; 1e-8 is from Apple's implementation."""
    return math.log(0.5) / math.log(beta + 1e-8) - 1.0
