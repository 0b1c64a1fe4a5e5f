"""Muon: hidden matrices are updated by their orthogonalised momentum, the rest by AdamW.

Torch's own Muon (since 2.9) supports neither stacks nor shards of matrices, rounds weights of
any dtype to bfloat16, and in 2.11 corrupts momentum that is already bfloat16.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from components.config.model_spec.feed_forward import ROUTERS
from components.optim.adamw import AdamW
from components.ranges import BelowOne, Count, NonNegative, Positive, Tokens

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # KellerJordan/Muon, muon.py
ADAMW_RMS = 0.2  # RMS of AdamW's updates, https://arxiv.org/abs/2502.16982, section 2.2


class WholeMatrices(Protocol):
    """Conversion between a rank's part of a weight and whole matrices."""

    def gather_matrix(self, part: Tensor) -> Tensor:
        """Return (..., outputs, inputs) from the parts of all ranks; all ranks call this."""

    def select_own_part(self, whole: Tensor) -> Tensor:
        """Return this rank's part, the inverse of `gather_matrix`."""


class Muon(torch.optim.Optimizer):
    """Muon for matrices, https://kellerjordan.github.io/posts/muon, and AdamW for the rest.

    The momentum is ``B = momentum x B + (1 - momentum) x g``. ``momentum`` rises linearly from
    ``momentum_start`` over ``momentum_warmup_tokens``, if these are set. The update is B, or
    with ``nesterov`` the same mean of g and B, orthogonalised by ``newton_schulz_steps``.
    ``update_scale`` multiplies the update of an (A, B) matrix: ``match_rms_adamw`` by 0.2
    sqrt(max(A, B)), so that AdamW's rate and decay can be reused
    (https://arxiv.org/abs/2502.16982, section 2.2); ``original`` by sqrt(max(1, A / B)).

    The rate of matrices is ``lr x matrix_lr_factor``; their decay per step is this rate times
    ``weight_decay``, without the scale. Embedding and head have their own rate factors; a tied
    head uses the embedding's. `AdamW` updates all other parameters, by its ``decay`` rule.
    ``decay_order`` applies to both optimizers. Clipping is as in `AdamW`.
    """

    tokens = 0  # trained tokens before the next step

    def __init__(
        self,
        *,
        parameters: Iterable[tuple[str, nn.Parameter]],
        lr: Positive,
        matrix_lr_factor: Positive,
        embedding_lr_factor: Positive,
        head_lr_factor: Positive,
        momentum: BelowOne,
        nesterov: bool,
        newton_schulz_steps: Count,
        update_scale: Literal["match_rms_adamw", "original"],
        beta1: BelowOne,
        beta2: BelowOne,
        eps: Positive,
        weight_decay: NonNegative,
        decay: Literal["matrices", "all", "all_but_embedding"],
        decay_order: Literal["before", "after"],
        clip_norm: Positive,
        clip_after_tokens: Tokens,
        momentum_start: BelowOne | None = None,
        momentum_warmup_tokens: Tokens = 0,
    ) -> None:
        named = list({id(weight): (name, weight) for name, weight in parameters}.values())
        matrices = [weight for name, weight in named if is_hidden_matrix(name, weight)]
        rest = [(name, weight) for name, weight in named if not is_hidden_matrix(name, weight)]
        super().__init__([{"params": matrices}], {"lr": lr})
        self._lr_factor, self._weight_decay = matrix_lr_factor, weight_decay
        self._decay_order = decay_order
        self._momentum, self._nesterov = momentum, nesterov
        self._start, self._warmup_tokens = momentum_start, momentum_warmup_tokens
        self._steps, self._scale = newton_schulz_steps, update_scale
        self._wholes: Mapping[nn.Parameter, WholeMatrices] = {}
        self._rest = None
        if rest:
            self._rest = AdamW(
                parameters=rest,
                lr=lr,
                beta1=beta1,
                beta2=beta2,
                eps=eps,
                weight_decay=weight_decay,
                decay=decay,
                decay_order=decay_order,
                clip_norm=clip_norm,
                clip_after_tokens=clip_after_tokens,
            )
            factors = {"embedding": embedding_lr_factor, "head": head_lr_factor}
            factor_of = {
                parameter: factors.get(name.partition(".")[0], 1.0) for name, parameter in rest
            }
            self._rest.param_groups = by_rate(self._rest.param_groups, factor_of)
            self._rest.state = self.state  # one state and one list of groups, for checkpoints
            self.param_groups += self._rest.param_groups

    @property
    def current_momentum(self) -> float:
        """The momentum of this step."""
        if self._start is None or self.tokens >= self._warmup_tokens:
            return self._momentum
        done = self.tokens / self._warmup_tokens
        return (1.0 - done) * self._start + done * self._momentum

    def use_full_matrices(self, wholes: Mapping[nn.Parameter, WholeMatrices]) -> None:
        """Set the parameters that are parts of matrices: `step` gathers whole matrices."""
        self._wholes = wholes

    @torch.no_grad()
    def step(  # type: ignore[override]  # torch overloads it; one signature answers both
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Update; skip parameters without a gradient. All ranks of a matrix call together."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        group = self.param_groups[0]
        for parameter in group["params"]:
            if parameter.grad is not None:
                self._update(parameter, group["lr"] * self._lr_factor)
        if self._rest is not None:
            for other in self._rest.param_groups:
                other["lr"] *= other["lr_factor"]
            self._rest.step()
            for other in self._rest.param_groups:
                other["lr"] = group["lr"]
        return loss

    def _update(self, parameter: nn.Parameter, rate: float) -> None:
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None, "the caller asked"
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        mean = state["momentum"].lerp_(gradient, 1.0 - self.current_momentum)
        if self._nesterov:
            mean = gradient.lerp(mean, self.current_momentum)
        conversion = self._wholes.get(parameter)
        whole = mean if conversion is None else conversion.gather_matrix(mean)
        factor = update_factor(self._scale, *whole.shape[-2:])
        update = orthogonalize_matrices(whole, steps=self._steps)
        if conversion is not None:
            update = conversion.select_own_part(update)
        decay = 1.0 - rate * self._weight_decay
        early, late = (decay, 1.0) if self._decay_order == "before" else (1.0, decay)
        parameter.mul_(early).add_(update, alpha=-rate * factor).mul_(late)


def by_rate(
    groups: Sequence[Mapping[str, Any]], factors: Mapping[nn.Parameter, float]
) -> list[dict[str, Any]]:
    """Split parameter groups by rate factor; set ``lr_factor`` of each group."""
    return [
        {
            **group,
            "params": [
                parameter for parameter in group["params"] if factors[parameter] == factor
            ],
            "lr_factor": factor,
        }
        for group in groups
        for factor in sorted({factors[parameter] for parameter in group["params"]})
    ]


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """Return whether Muon updates a parameter: a layer's ``weight`` with 2 or more dimensions.

    A stack of experts counts as several matrices. Routers are excluded: each expert has a row,
    and the size of a row matters (as in https://arxiv.org/abs/2502.16982 and Megatron). The
    gate of a shared expert is such a row.
    """
    *owners, last = name.split(".")
    hidden = owners[0] in {"layers", "mtp"} and owners[-1] not in ROUTERS
    return hidden and last == "weight" and parameter.dim() > 1


def update_factor(scale: str, outputs: int, inputs: int) -> float:
    """Return the factor of the orthogonal update of an (outputs, inputs) matrix."""
    if scale == "original":
        return math.sqrt(max(1.0, outputs / inputs))
    return ADAMW_RMS * math.sqrt(max(outputs, inputs))


def orthogonalize_matrices(matrices: Tensor, *, steps: int) -> Tensor:
    """Orthogonalise each matrix, (..., outputs, inputs): map its singular values to about 1.

    This is the Newton-Schulz iteration of https://github.com/KellerJordan/Muon. After division
    by the Frobenius norm, five steps map values from 0.005 to 1 to values from 0.68 to 1.16. It
    computes in bfloat16, as there; for float64 weights (comparisons of layouts) in float64.
    """
    a, b, c = COEFFICIENTS
    is_float64 = matrices.dtype == torch.float64
    x = matrices.flatten(0, -3) if matrices.dim() > 2 else matrices[None]
    x = x if is_float64 else x.bfloat16()
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype).reshape(matrices.shape)
