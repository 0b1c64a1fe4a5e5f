"""Mixture of experts (MoE), which replaces a layer's MLP; it drops no tokens."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Literal, Self, TypeVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from typing_extensions import override

from components.config.model_spec.feed_forward import ExpertsSpec
from components.model.checkpoint_storage import pass_through
from components.model.expert_products import (
    Biases,
    Matrices,
    grouped_products,
    has_grouped_kernel,
    mix_in_loop,
    sorted_products,
)
from components.model.linear import product_dtype
from components.model.mlp import ACTIVATIONS, MLP, make_swiglu
from components.model.routing import (
    ChoiceRule,
    ExpertChoice,
    Routing,
    RoutingTally,
    choose_experts,
    force_uniform,
    record_routing,
)
from components.torch_internals.operators import in_backward

Result = TypeVar("Result")


class Stack(nn.Module):
    """One matrix per expert; ``weight[expert]`` is the weight of an ``nn.Linear``.

    The biases of all experts are one vector, so that they start at 0 and have no weight decay.
    """

    def __init__(
        self,
        num_experts: int,
        outputs: int,
        inputs: int,
        *,
        bias: bool = False,
        writes_residual: bool = False,
    ) -> None:
        super().__init__()
        self.writes_residual = writes_residual
        self.weight = nn.Parameter(torch.empty(num_experts, outputs, inputs))
        nn.init.uniform_(self.weight, -(inputs**-0.5), inputs**-0.5)  # as in `nn.Linear`
        self.bias = nn.Parameter(torch.zeros(num_experts * outputs)) if bias else None

    def bias_rows(self, dtype: torch.dtype) -> Float[Tensor, "experts outputs"]:
        """Return the biases, a row per expert."""
        assert self.bias is not None
        return self.bias.to(dtype).view(len(self.weight), -1)


class Experts(nn.Module):
    """MoE layer: each token's ``top_k`` experts, weighted by the router's probabilities.

    https://arxiv.org/abs/2101.03961, section 2, with several experts per token as in
    https://arxiv.org/abs/1701.06538, section 2. `ChoiceRule` documents other keys. In training,
    ``routing`` records the router's last forward pass (not a repetition by activation
    checkpointing) until `take_rows`. ``routing: uniform`` in a recipe forces a perfect balance,
    to measure speed. ``shared_ffn_dim`` adds an MLP of that width for every token
    (https://arxiv.org/abs/2401.06066, section 3.2); with a ``shared_gate`` times the sigmoid of
    a map from the token to one number (Qwen3-Next). ``bias`` adds biases to all maps, also to
    the router's. With a ``balance_rate``, the scores of each
    expert have a bias (a buffer) for the choice only; after each step `balance` changes it by
    the rate.
    """

    routing: Routing | None
    choice_bias: Float[Tensor, "experts"] | None
    load: Int[Tensor, "experts"] | None  # tokens per expert since the last reset

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
        self.swiglu = make_swiglu(spec)
        self.routing = None
        self.router = nn.Linear(dim, num_experts, bias=spec.bias)
        bias = spec.bias
        self.gate = Stack(num_experts, width, dim, bias=bias) if spec.gated else None
        self.up = Stack(num_experts, width, dim, bias=bias)
        self.down = Stack(num_experts, dim, width, bias=bias, writes_residual=True)
        self.shared = None if spec.shared_expert is None else MLP(spec.shared_expert, dim=dim)
        self.shared_gate = nn.Linear(dim, 1, bias=False) if spec.shared_gate else None
        choice_bias = None if spec.balance_rate is None else torch.zeros(num_experts)
        self.register_buffer("choice_bias", choice_bias)
        self.load = None

    def forward(self, hidden: Float[Tensor, "batch seq dim"]) -> Float[Tensor, "batch seq dim"]:
        tokens = hidden.flatten(0, -2)
        choice = self._route(tokens)
        dtype = product_dtype(tokens)  # autocast does not cast the inputs of these products
        matrices = Matrices(
            None if self.gate is None else self.gate.weight.to(dtype),
            self.up.weight.to(dtype),
            self.down.weight.to(dtype),
            self.activation,
            self.swiglu,
            self._list_biases(dtype),
        )
        mixed: Tensor = self.mixture(
            tokens.to(dtype), choice.weights.to(dtype), choice.experts, matrices
        )
        mixed = mixed.to(dtype).view(hidden.shape)
        if self.shared is None:
            return mixed
        mixed = pass_through(mixed)  # before the shared expert, while it is the newest result
        if self.shared_gate is None:
            return mixed + pass_through(self.shared(hidden))
        gated: Tensor = self.shared(hidden) * self.shared_gate(hidden).sigmoid()
        return mixed + gated

    def _list_biases(self, dtype: torch.dtype) -> Biases | None:
        if self.up.bias is None:
            return None
        gate = None if self.gate is None else self.gate.bias_rows(dtype)
        return Biases(gate, self.up.bias_rows(dtype), self.down.bias_rows(dtype))

    def take_routing(self) -> Routing | None:
        routing, self.routing = self.routing, None
        if routing is not None and self.choice_bias is not None:
            counts = routing.counts.detach().long()
            self.load = counts if self.load is None else self.load + counts
        if routing is None or self.mixture.beyond is None:
            return routing
        return replace(routing, beyond=routing.beyond + self.mixture.beyond)

    def _route(self, tokens: Tensor) -> ExpertChoice:
        logits: Tensor = self.router(tokens)
        if self.uniform:
            logits = force_uniform(logits, top_k=self.rule.top_k)
            rule = self.rule._replace(num_groups=1)
            choice = choose_experts(logits, rule)
        else:
            choice = choose_experts(logits, self.rule, self.choice_bias)
        if self.training:
            routing = record_routing(logits, choice, z_loss=self.z_loss > 0)
            # Checkpointing requires that a repetition computes the record, too. Compiled code
            # cannot test for a repetition, so its caller does: `forgets_repetitions`.
            if torch.compiler.is_compiling() or not in_backward():
                self.routing = routing
        return choice

    @torch.no_grad()
    def update_bias(self, load: Int[Tensor, "experts"]) -> None:
        """Change each expert's bias by the rate: down if its load is above the mean, else up.

        https://arxiv.org/abs/2408.15664, algorithm 1; ``load`` counts the tokens of a step.
        """
        assert self.choice_bias is not None
        assert self.balance_rate is not None
        # In integers, so that the result does not depend on the layout.
        direction = (load.sum() - len(load) * load).sign()
        self.choice_bias.add_(direction.to(self.choice_bias.dtype), alpha=self.balance_rate)

    @override
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Keep the bias in float32 when weights are cast to 16 bits: its steps are small."""
        float32_bias = self.choice_bias
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch has no types here
        cast_bias = self.choice_bias
        if float32_bias is not None and cast_bias is not None and cast_bias.itemsize < 4:
            self.choice_bias = float32_bias.to(cast_bias.device)
        return self

    def routing_penalty(self, tally: RoutingTally) -> Float[Tensor, ""]:
        pooled = self.auxiliary_scope == "model"
        balance = tally.pooled.balance_loss() if pooled else tally.balance_loss
        return self.auxiliary_loss * balance + self.z_loss * tally.z_loss


class Mixture(nn.Module):
    """Sum of each token's experts, in float32 or wider; no parameters, so replaceable.

    ``beyond`` counts, on the device, the last pass's pairs that exceeded a bounded message.
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
            return mix_in_loop
        if tokens.dtype == torch.bfloat16 and self._has_kernel(tokens):
            return grouped_products
        return sorted_products

    def _has_kernel(self, tokens: Tensor) -> bool:
        return has_grouped_kernel(tokens.device.type)


def forgets_repetitions(
    forward: Callable[..., Result], layers: Sequence[Experts]
) -> Callable[..., Result]:
    """Wrap a compiled ``forward`` of ``layers`` to restore their records after a repetition."""

    @wraps(forward)
    def call_forward(*given: Any, **named: Any) -> Result:
        before = [layer.routing for layer in layers]
        try:
            return forward(*given, **named)
        finally:  # checkpointing may stop a repetition early, by an exception
            if in_backward():
                for layer, routing in zip(layers, before, strict=True):
                    layer.routing = routing

    return call_forward


def expert_layers(model: nn.Module) -> list[Experts]:
    """List the MoE layers of a model or of a pipeline stage."""
    return [module for module in model.modules() if isinstance(module, Experts)]


def take_rows(layers: Sequence[Experts]) -> Float[Tensor, "layers numbers"] | None:
    """Take the routers' records of the last training forward pass: one row per layer."""
    records = [routing for layer in layers if (routing := layer.take_routing())]
    if not records:
        return None
    trains = torch.is_grad_enabled() and layers[0].router.weight.requires_grad
    assert not trains or all(x.probabilities.requires_grad for x in records), (
        "the router's graph is lost: use checkpointing with use_reentrant=False"
    )
    return torch.stack([routing.to_row() for routing in records])
