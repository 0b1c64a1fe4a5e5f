"""Specifications of attention: grouped-query and latent."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from components.attention_backends import Backend
from components.attention_windows import Window, check_windows
from components.config.model_spec.norms import NormSpec
from components.config.schema.part import Absent, ModelPartSpec
from components.ranges import BelowOne, Count, Heads


def _check_pattern(windows: object) -> object:
    if isinstance(windows, Sequence) and not isinstance(windows, str):
        check_windows(windows)
    return windows


Windows = Annotated[tuple[Window, ...], Field(strict=False), BeforeValidator(_check_pattern)]
Backends = Annotated[tuple[Backend, ...], Field(strict=False)]


class AttentionSpec(ModelPartSpec):
    """Settings of any attention block, for parameter counts and conversion."""

    is_partial: ClassVar[bool] = True

    num_heads: Heads
    num_kv_heads: Heads
    head_dim: Count
    bias: bool = False
    qk_norm: NormSpec | None = None
    layer_scaling: bool = False
    dropout: BelowOne = 0.0
    backends: Backends = ()
    qk_norm_over: Absent[Literal["all_heads", "each_head"]] = "all_heads"
    windows: Absent[Windows] = ("full",)
    scale_dim: Absent[Count | None] = None
    key_value_rank: Absent[Count | None] = None
    query_rank: Absent[Count | None] = None
    rotary_dim: Absent[Count] = 1
    value_dim: Absent[Count | None] = None
    latent_norm: Absent[NormSpec | None] = None
    output_gate: Absent[bool] = False
    sinks: Absent[bool] = False

    def count_parameters(self, dim: int) -> int:
        """Count the parameters of matrices, norms, sinks and biases."""
        count = self.count_matrix_parameters(dim) + self.norm_parameters
        count += self.num_heads if self.sinks else 0
        if self.bias:
            queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
            count += queries + self.gate_width + 2 * keys + dim
        return count

    def count_matrix_parameters(self, dim: int) -> int:
        """Count the parameters of all matrices."""
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return dim * (2 * queries + self.gate_width + 2 * keys)

    @property
    def latent_width(self) -> int:
        """Channels of a token's latent vectors, with the rotated channels of all keys."""
        return 0

    @property
    def inner_width(self) -> int:
        """Output channels of the map from a latent vector: unrotated keys, and values."""
        return self.num_heads * (self.head_dim - self.rotary_dim + self.value_width)

    @property
    def gate_width(self) -> int:
        """Output channels of the map to the output gate, one for each channel of all heads."""
        return self.num_heads * self.head_dim if self.output_gate else 0

    @property
    def rope_dim(self) -> int:
        """Number of channels of a head that RoPE may rotate."""
        return self.head_dim

    @property
    def value_width(self) -> int:
        """Width of a head's values."""
        return self.value_dim or self.head_dim

    @property
    def product_width(self) -> int:
        """Channels of a query's products with a key and with its value, in all heads."""
        return self.num_heads * (self.head_dim + self.value_width)

    @property
    def norm_parameters(self) -> int:
        """Parameters of the norms of queries and keys."""
        if self.qk_norm is None:
            return 0
        heads = 2 if self.norms_heads else self.num_heads + self.num_kv_heads
        return self.qk_norm.count_parameters(heads * self.head_dim)

    @property
    def norms_heads(self) -> bool:
        """Whether queries and keys are normalized head by head."""
        return self.qk_norm is not None and self.qk_norm_over == "each_head"

    @property
    def common_window(self) -> int | None:
        """Window of all layers with a window; None if they differ or no layer has a window."""
        windows = {window for window in self.windows if window != "full"}
        return windows.pop() if len(windows) == 1 else None


class GroupedQueryAttentionSpec(AttentionSpec):
    """Grouped-query attention: several query heads share a key and a value head."""

    target: ClassVar[str] = "components.model.attention.Attention"

    bias: bool
    qk_norm: NormSpec | None
    layer_scaling: bool
    dropout: BelowOne
    backends: Backends
    qk_norm_over: Literal["all_heads", "each_head"] = "all_heads"
    windows: Windows = ("full",)
    scale_dim: Count | None = None
    output_gate: bool = False
    sinks: bool = False


class LatentAttentionSpec(AttentionSpec):
    """Multi-head latent attention: heads are computed from two narrow vectors per token."""

    target: ClassVar[str] = "components.model.latent_attention.LatentAttention"

    rotary_dim: Count
    value_dim: Count
    query_rank: Count | None
    key_value_rank: Count
    latent_norm: NormSpec
    dropout: BelowOne
    backends: Backends
    bias: Literal[False] = False
    qk_norm: None = None
    layer_scaling: Literal[False] = False

    def count_matrix_parameters(self, dim: int) -> int:
        """Count the parameters of all matrices."""
        queries = self.num_heads * self.head_dim
        up = (self.query_rank or dim) * queries + self.key_value_rank * self.inner_width
        return dim * (self.latent_width + self.num_heads * self.value_width) + up

    @property
    def latent_width(self) -> int:
        """Channels of a token's latent vectors, with the rotated channels of all keys."""
        return (self.query_rank or 0) + self.key_value_rank + self.rotary_dim

    @property
    def rope_dim(self) -> int:
        """Number of channels of a head that RoPE may rotate."""
        return self.rotary_dim

    @property
    def norm_parameters(self) -> int:
        """Parameters of the norms of latent vectors."""
        return self.latent_norm.count_parameters((self.query_rank or 0) + self.key_value_rank)
