"""Muon: hidden matrices are updated by their orthogonalised momentum, the rest by AdamW.

Which is which is a rule on names and dimensions (`is_hidden_matrix`). torch has a Muon of its
own since 2.9. It takes no stack of matrices and no part of one, rounds to bfloat16 whatever the
weights are, and in 2.11 harms momentum that is bfloat16 already.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from components.optim.adamw import AdamW
from components.ranges import BelowOne, Count, NonNegative, Positive, Tokens

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # KellerJordan/Muon, muon.py
ADAMW_RMS = 0.2  # of AdamW's updates, https://arxiv.org/abs/2502.16982, section 2.2


class WholeMatrices(Protocol):
    """How the part of a weight that a rank updates belongs to whole matrices."""

    def gather(self, part: Tensor) -> Tensor:
        """Return (..., outputs, inputs) from the parts of all ranks, which all call it."""

    def own(self, whole: Tensor) -> Tensor:
        """Return this rank's part, as `gather` takes it."""


class Muon(torch.optim.Optimizer):
    """Update matrices by Muon, https://kellerjordan.github.io/posts/muon, the rest by AdamW.

    ``B = momentum x B + (1 - momentum) x g``, where ``momentum`` grows linearly from
    ``momentum_start`` over ``momentum_warmup_tokens``, if those are given; the update is B, or
    with ``nesterov`` the same mean of g and B, orthogonalised by ``newton_schulz_steps``.
    ``update_scale`` multiplies that of an (A, B) matrix: ``match_rms_adamw`` by 0.2 sqrt(max(A,
    B)), with which the rate and decay of AdamW carry over (https://arxiv.org/abs/2502.16982,
    section 2.2); ``original`` by sqrt(max(1, A / B)). Matrices have the rate ``lr x
    matrix_lr_factor``, and decay by it times
    ``weight_decay``, unscaled; embedding and head have factors of their own, a tied one that of
    the embedding. The rest follows `AdamW`, to whose ``decay`` the embedding and
    the head belong; ``decay_order`` is that of both. The train step bounds the gradients'
    global norm by ``clip_norm`` from ``clip_after_tokens`` on, before all of it.
    """

    tokens = 0  # trained on before the next step

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
        named = list({id(one): (name, one) for name, one in parameters}.values())
        matrices = [one for name, one in named if is_hidden_matrix(name, one)]
        rest = [(name, one) for name, one in named if not is_hidden_matrix(name, one)]
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
            of_ends = {one: factors.get(name.partition(".")[0], 1.0) for name, one in rest}
            self._rest.param_groups = by_rate(self._rest.param_groups, of_ends)
            self._rest.state = (
                self.state
            )  # one state and one list of groups, for who saves them
            self.param_groups += self._rest.param_groups

    @property
    def momentum(self) -> float:
        """The momentum of this step."""
        if self._start is None or self.tokens >= self._warmup_tokens:
            return self._momentum
        done = self.tokens / self._warmup_tokens
        return (1.0 - done) * self._start + done * self._momentum

    def see_whole(self, wholes: Mapping[nn.Parameter, WholeMatrices]) -> None:
        """Hear which parameters are parts of matrices: no part is orthogonal by itself."""
        self._wholes = wholes

    @torch.no_grad()
    def step(  # type: ignore[override]  # torch overloads it; one signature answers both
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Update; a parameter without gradient rests. All ranks of a matrix call together."""
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
        mean = state["momentum"].lerp_(gradient, 1.0 - self.momentum)
        if self._nesterov:
            mean = gradient.lerp(mean, self.momentum)
        place = self._wholes.get(parameter)
        whole = mean if place is None else place.gather(mean)
        factor = update_factor(self._scale, *whole.shape[-2:])
        update = orthogonalised(whole, steps=self._steps)
        if place is not None:
            update = place.own(update)
        kept = 1.0 - rate * self._weight_decay
        early, late = (kept, 1.0) if self._decay_order == "before" else (1.0, kept)
        parameter.mul_(early).add_(update, alpha=-rate * factor).mul_(late)


def by_rate(
    groups: Sequence[Mapping[str, Any]], factors: Mapping[nn.Parameter, float]
) -> list[dict[str, Any]]:
    """Part groups of parameters by the factor of their rate, which each group then names."""
    return [
        {
            **group,
            "params": [one for one in group["params"] if factors[one] == factor],
            "lr_factor": factor,
        }
        for group in groups
        for factor in sorted({factors[one] for one in group["params"]})
    ]


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """Whether Muon updates it: a layer's ``weight`` of two or more dimensions, no router's.

    Embedding, positions and head lie outside of the layers, and of those that predict further
    tokens; norms and biases are vectors. A
    stack of experts is as many matrices. A router gives each expert a row, whose sizes mean
    something (https://arxiv.org/abs/2502.16982 and Megatron leave it to AdamW).
    """
    *owners, last = name.split(".")
    hidden = owners[0] in {"layers", "mtp"} and owners[-1] != "router"
    return hidden and last == "weight" and parameter.dim() > 1


def update_factor(scale: str, outputs: int, inputs: int) -> float:
    """Return what multiplies the orthogonal update of a matrix of such sizes."""
    if scale == "original":
        return math.sqrt(max(1.0, outputs / inputs))
    return ADAMW_RMS * math.sqrt(max(outputs, inputs))


def orthogonalised(matrices: Tensor, *, steps: int) -> Tensor:
    """Map the singular values of each matrix, (..., outputs, inputs), to about 1.

    The Newton-Schulz iteration of https://github.com/KellerJordan/Muon: five steps take values
    of 0.005 to 1, after division by the Frobenius norm, to 0.68 to 1.16. As there it computes
    in bfloat16; of float64 weights in float64, in which layouts are compared.
    """
    a, b, c = COEFFICIENTS
    exact = matrices.dtype == torch.float64
    x = matrices.flatten(0, -3) if matrices.dim() > 2 else matrices[None]
    x = x if exact else x.bfloat16()
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype).reshape(matrices.shape)
