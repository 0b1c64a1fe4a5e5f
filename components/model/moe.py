"""A mixture of experts in place of a layer's MLP, dropless."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Literal, Self, TypeVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from typing_extensions import override

from components.config.model_spec.feed_forward import ExpertsSpec
from components.model.expert_products import (
    Matrices,
    grouped_products,
    has_grouped_kernel,
    loop,
    sorted_products,
)
from components.model.kept import passing_on
from components.model.mlp import ACTIVATIONS, MLP
from components.model.products import product_dtype
from components.model.routing import (
    ChoiceRule,
    ExpertChoice,
    Routing,
    RoutingTally,
    choose,
    force_uniform,
    record,
)
from components.torch_internals.operators import in_backward

Result = TypeVar("Result")


class Stack(nn.Module):
    """Hold one matrix for each expert; ``weight[expert]`` is what ``nn.Linear`` would hold."""

    def __init__(
        self, num_experts: int, outputs: int, inputs: int, *, writes_residual: bool = False
    ) -> None:
        super().__init__()
        self.writes_residual = writes_residual
        self.weight = nn.Parameter(torch.empty(num_experts, outputs, inputs))
        nn.init.uniform_(self.weight, -(inputs**-0.5), inputs**-0.5)  # as `nn.Linear` starts


class Experts(nn.Module):
    """Send each token through its ``top_k`` experts, weighted by the router's probabilities.

    https://arxiv.org/abs/2101.03961, section 2, with several experts a token as in
    https://arxiv.org/abs/1701.06538, section 2. In training ``routing`` keeps what the router
    did in the last forward pass until `take_rows` takes it; a forward pass that activation
    checkpointing repeats leaves no trace. ``renormalize`` makes a token's weights sum to 1;
    ``routing: uniform`` forces a perfect balance, for measuring speed.

    ``shared_ffn_dim`` adds an MLP of that width that every token goes through
    (https://arxiv.org/abs/2401.06066, section 3.2). The other keys with a default are those of
    `ChoiceRule`. With a ``balance_rate`` each expert has a bias, which is added to the scores
    for the choice alone, and which `balance` moves by the rate after each step: a buffer.
    """

    routing: Routing | None
    choice_bias: Float[Tensor, "experts"] | None
    load: Int[Tensor, "experts"] | None  # tokens of each expert since it was last taken

    def __init__(self, spec: ExpertsSpec, *, dim: int) -> None:
        super().__init__()
        num_experts, width = spec.num_experts, spec.ffn_dim
        self.rule = ChoiceRule(
            top_k=spec.top_k,
            renormalize=spec.renormalize,
            scores=spec.scores,
            weight_scale=spec.weight_scale,
            num_groups=spec.num_groups,
            top_groups=spec.top_groups,
        )
        self.balance_rate = spec.balance_rate
        self.uniform = spec.routing == "uniform"
        self.auxiliary_loss = spec.auxiliary_loss
        self.auxiliary_scope = spec.auxiliary_scope
        self.z_loss = spec.z_loss
        self.mixture = Mixture(path=spec.path)
        self.activation = ACTIVATIONS[spec.activation]
        self.routing = None
        self.router = nn.Linear(dim, num_experts, bias=False)
        self.gate = Stack(num_experts, width, dim) if spec.gated else None
        self.up = Stack(num_experts, width, dim)
        self.down = Stack(num_experts, dim, width, writes_residual=True)
        self.shared = None if spec.shared is None else MLP(spec.shared, dim=dim)
        bias = None if spec.balance_rate is None else torch.zeros(num_experts)
        self.register_buffer("choice_bias", bias)
        self.load = None

    def forward(self, hidden: Float[Tensor, "batch seq dim"]) -> Float[Tensor, "batch seq dim"]:
        tokens = hidden.flatten(0, -2)
        choice = self._route(tokens)
        dtype = product_dtype(tokens)  # autocast does not know our products
        matrices = Matrices(
            None if self.gate is None else self.gate.weight.to(dtype),
            self.up.weight.to(dtype),
            self.down.weight.to(dtype),
            self.activation,
        )
        mixed: Tensor = self.mixture(
            tokens.to(dtype), choice.weights.to(dtype), choice.experts, matrices
        )
        mixed = mixed.to(dtype).view(hidden.shape)
        if self.shared is None:
            return mixed
        return passing_on(mixed) + passing_on(self.shared(hidden))

    def take_routing(self) -> Routing | None:
        taken, self.routing = self.routing, None
        if taken is not None and self.choice_bias is not None:
            counts = taken.counts.detach().long()
            self.load = counts if self.load is None else self.load + counts
        if taken is None or self.mixture.beyond is None:
            return taken
        return replace(taken, beyond=taken.beyond + self.mixture.beyond)

    def _route(self, tokens: Tensor) -> ExpertChoice:
        logits: Tensor = self.router(tokens)
        if self.uniform:
            logits = force_uniform(logits, top_k=self.rule.top_k)
            rule = self.rule._replace(num_groups=1)
            choice = choose(logits, rule)
        else:
            choice = choose(logits, self.rule, self.choice_bias)
        if self.training:
            kept = record(logits, choice, z_loss=self.z_loss > 0)
            # Checkpointing wants a repetition's record computed all the same. What is compiled
            # cannot ask for it, so whoever calls it does: `forgets_repetitions`.
            if torch.compiler.is_compiling() or not in_backward():
                self.routing = kept
        return choice

    @torch.no_grad()
    def balance(self, load: Int[Tensor, "experts"]) -> None:
        """Move the bias of each expert by the rate, down where it had more than the mean.

        https://arxiv.org/abs/2408.15664, algorithm 1; ``load`` are the tokens of a whole step.
        """
        assert self.choice_bias is not None
        assert self.balance_rate is not None
        # In whole numbers: what a step does to it depends on no layout.
        direction = (load.sum() - len(load) * load).sign()
        self.choice_bias.add_(direction.to(self.choice_bias.dtype), alpha=self.balance_rate)

    @override
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Leave the bias in float32 where weights are rounded: it moves by small steps."""
        exact = self.choice_bias
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's
        rounded = self.choice_bias
        if exact is not None and rounded is not None and rounded.itemsize < 4:
            self.choice_bias = exact.to(rounded.device)
        return self

    def penalty(self, tally: RoutingTally) -> Float[Tensor, ""]:
        pooled = self.auxiliary_scope == "model"
        balance = tally.pooled.balance_loss() if pooled else tally.balance_loss
        return self.auxiliary_loss * balance + self.z_loss * tally.z_loss


class Mixture(nn.Module):
    """Sum each token's experts, in float32 or finer; no parameters: it is easily replaced.

    ``beyond`` counts, on the device, what the last forward pass had no room for; None is none.
    """

    beyond: Int[Tensor, ""] | None = None

    def __init__(self, *, path: Literal["auto", "grouped", "loop"]) -> None:
        super().__init__()
        self.path = path

    def forward(
        self,
        tokens: Float[Tensor, "tokens dim"],
        weights: Float[Tensor, "tokens top_k"],
        experts: Int[Tensor, "tokens top_k"],
        matrices: Matrices,
    ) -> Float[Tensor, "tokens dim"]:
        return cast("Tensor", self._path(tokens)(tokens, weights, experts, matrices))

    def _path(self, tokens: Tensor) -> Any:
        if self.path == "loop":
            return loop
        if tokens.dtype == torch.bfloat16 and self._has_kernel(tokens):
            return grouped_products
        return sorted_products

    def _has_kernel(self, tokens: Tensor) -> bool:
        return has_grouped_kernel(tokens.device.type)


def forgets_repetitions(
    forward: Callable[..., Result], layers: Sequence[Experts]
) -> Callable[..., Result]:
    """Let a compiled ``forward`` of ``layers`` leave no record when it is a repetition."""

    @wraps(forward)
    def call(*given: Any, **named: Any) -> Result:
        before = [layer.routing for layer in layers]
        try:
            return forward(*given, **named)
        finally:  # checkpointing breaks a repetition off once it has what it needs
            if in_backward():
                for layer, routing in zip(layers, before, strict=True):
                    layer.routing = routing

    return call


def expert_layers(model: nn.Module) -> list[Experts]:
    """List the mixtures of experts of a model, or of a stage of one."""
    return [module for module in model.modules() if isinstance(module, Experts)]


def take_rows(layers: Sequence[Experts]) -> Float[Tensor, "layers numbers"] | None:
    """Take what the routers did in the last forward pass, a row a layer, if it was training."""
    records = [routing for layer in layers if (routing := layer.take_routing())]
    if not records:
        return None
    lost = torch.is_grad_enabled() and layers[0].router.weight.requires_grad
    assert not lost or all(x.probabilities.requires_grad for x in records), (
        "the router's graph is lost: use checkpointing with use_reentrant=False"
    )
    return torch.stack([routing.row() for routing in records])
