"""Specifications of the feed-forward part of a layer: an MLP, or a mixture of experts."""

from typing import ClassVar, Literal

from components.config.schema.part import Absent, ModelPartSpec
from components.ranges import Count, NonNegative, Positive

ActivationName = Literal["silu", "gelu", "gelu_tanh", "relu_squared", "xielu"]
TRAINED_SCALARS = {"xielu": 2}
ROUTERS = frozenset({"router", "shared_gate"})  # matrices whose rows are scores or gates


class FeedForwardSpec(ModelPartSpec):
    """Settings of any feed-forward part, for parameter counts and conversion."""

    is_partial: ClassVar[bool] = True

    ffn_dim: Count
    gated: bool
    activation: ActivationName = "silu"
    bias: Absent[bool] = False
    swiglu_alpha: Absent[Positive] = 1.0
    swiglu_limit: Absent[Positive | None] = None
    linear_offset: Absent[float] = 0.0
    num_experts: Absent[Count | None] = None
    top_k: Absent[Count | None] = None
    shared_ffn_dim: Absent[Count | None] = None
    shared_gate: Absent[bool] = False
    num_groups: Absent[Count] = 1
    top_groups: Absent[Count] = 1
    renormalize: Absent[bool] = False
    routing: Absent[Literal["learned", "uniform"]] = "learned"
    auxiliary_loss: Absent[NonNegative] = 0.0
    path: Absent[Literal["auto", "grouped", "loop"]] = "auto"
    scores: Absent[Literal["softmax", "sigmoid"]] = "softmax"
    weight_scale: Absent[Positive] = 1.0
    balance_rate: Absent[NonNegative | None] = None

    def expert_matrices(self, dim: int) -> int:
        """Count the parameters of the matrices of one expert, or of the dense block."""
        return (3 if self.gated else 2) * dim * self.ffn_dim

    def expert_parameters(self, dim: int) -> int:
        """Count the parameters of one expert, or of the dense block."""
        biases = self._count_biases(dim, self.ffn_dim)
        return self.expert_matrices(dim) + biases + self.activation_parameters

    @property
    def activation_parameters(self) -> int:
        """Number of trained scalars of the activation."""
        return TRAINED_SCALARS.get(self.activation, 0)

    def shared_parameters(self, dim: int) -> int:
        """Count the parameters of the shared expert."""
        width = self.shared_ffn_dim or 0
        return (3 if self.gated else 2) * dim * width + self._count_biases(dim, width)

    def router_parameters(self, dim: int) -> int:
        """Count the parameters of the router and of the shared expert's gate."""
        return (dim + self.bias) * (self.num_experts or 0) + dim * self.shared_gate

    def _count_biases(self, dim: int, width: int) -> int:
        return (2 if self.gated else 1) * width + dim if self.bias and width else 0

    @property
    def is_clamped(self) -> bool:
        """Whether the gate is a clamped SwiGLU, not plain ``activation(gate) * up``."""
        changes = self.swiglu_alpha, self.swiglu_limit, self.linear_offset
        return changes != (1.0, None, 0.0)

    @property
    def is_plain(self) -> bool:
        """Whether the part is a dense block without a gate."""
        return not self.gated and self.num_experts is None


class _SwiGLUSpec(FeedForwardSpec):
    """A part whose gate may be a clamped SwiGLU (`components.model.mlp.SwiGLU`)."""

    swiglu_alpha: Positive = 1.0
    swiglu_limit: Positive | None = None
    linear_offset: float = 0.0


class MLPSpec(_SwiGLUSpec):
    """A dense feed-forward block."""

    target: ClassVar[str] = "components.model.mlp.MLP"

    activation: ActivationName
    bias: bool


class ExpertsSpec(_SwiGLUSpec):
    """A mixture of experts, with a shared expert if there is a ``shared_ffn_dim``."""

    target: ClassVar[str] = "components.model.moe.Experts"

    activation: Literal["silu", "gelu", "gelu_tanh"]
    num_experts: Count
    top_k: Count
    renormalize: bool
    routing: Literal["learned", "uniform"]
    auxiliary_loss: NonNegative
    auxiliary_scope: Literal["layer", "model"]
    z_loss: NonNegative
    path: Literal["auto", "grouped", "loop"]
    bias: bool = False  # of all experts and of the router
    shared_ffn_dim: Count | None = None
    shared_gate: bool = False
    scores: Literal["softmax", "sigmoid"] = "softmax"
    weight_scale: Positive = 1.0
    num_groups: Count = 1
    top_groups: Count = 1
    balance_rate: NonNegative | None = None

    @property
    def shared_expert(self) -> MLPSpec | None:
        """Specification of the shared expert, a dense block that processes every token."""
        width = self.shared_ffn_dim
        if width is None:
            return None
        return MLPSpec(
            ffn_dim=width,
            activation=self.activation,
            gated=self.gated,
            bias=self.bias,
            swiglu_alpha=self.swiglu_alpha,
            swiglu_limit=self.swiglu_limit,
            linear_offset=self.linear_offset,
        )
