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

    def expert_parameters(self, dim: int) -> int:
        """Count the parameters of one expert, or of the dense block."""
        up_matrices = 2 if self.gated else 1
        count = (up_matrices + 1) * dim * self.ffn_dim + self.activation_parameters
        return count + (up_matrices * self.ffn_dim + dim if self.bias else 0)

    @property
    def activation_parameters(self) -> int:
        """Number of trained scalars of the activation."""
        return TRAINED_SCALARS.get(self.activation, 0)

    def shared_parameters(self, dim: int) -> int:
        """Count the parameters of the shared expert."""
        return (3 if self.gated else 2) * dim * (self.shared_ffn_dim or 0)

    def router_parameters(self, dim: int) -> int:
        """Count the parameters of the router and of the shared expert's gate."""
        return dim * ((self.num_experts or 0) + self.shared_gate)

    @property
    def is_plain(self) -> bool:
        """Whether the part is a dense block without a gate."""
        return not self.gated and self.num_experts is None


class MLPSpec(FeedForwardSpec):
    """A dense feed-forward block."""

    target: ClassVar[str] = "components.model.mlp.MLP"

    activation: ActivationName
    bias: bool


class ExpertsSpec(FeedForwardSpec):
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
        return MLPSpec(ffn_dim=width, activation=self.activation, gated=self.gated, bias=False)
