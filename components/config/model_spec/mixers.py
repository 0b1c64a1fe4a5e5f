"""Specifications of linear mixers: gated delta net, Kimi delta attention and Mamba-2.

A head keeps a state, a matrix of ``key_dim x value_dim`` numbers, instead of earlier keys and
values. So the cost of a token does not depend on the sequence length.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from components.config.model_spec.norms import NormSpec
from components.config.schema.part import Absent, ModelPartSpec
from components.ranges import Count, Heads, NonNegative, Positive
from components.scan_backends import ScanBackend, ScanCase

NormPlacement = Literal["before", "after", "both"]
DecayRange = Annotated[tuple[NonNegative, Positive], Field(strict=False)]
StepRange = Annotated[tuple[Positive, Positive], Field(strict=False)]
ScanBackends = Annotated[tuple[ScanBackend, ...], Field(strict=False)]
StepLimits = Annotated[tuple[NonNegative, Positive | None], Field(strict=False)]


class MixerSpec(ModelPartSpec):
    """Settings of any linear mixer.

    ``num_heads`` heads have a state each; ``num_key_heads`` groups of them share a query and a
    key of ``key_dim`` channels. A causal convolution reads ``conv_size`` tokens. The decay of
    a state starts uniformly in ``decay_range``, the step size log-uniformly in ``step_range``.
    ``norm_placement`` replaces the model's in the layers of this mixer. The first of
    ``scan_backends`` that supports the case scans (`components.scan_backends`).
    """

    is_partial: ClassVar[bool] = True
    state_products: ClassVar[int] = 3  # of state and vector per token: recall, write and read
    chunk_tokens: ClassVar[int] = 64  # of one chunk of the scan
    groups_norm: ClassVar[bool] = False  # whether the output norm has a weight per channel

    num_heads: Heads
    num_key_heads: Absent[Heads | None] = None
    key_dim: Count
    value_dim: Count
    conv_size: Count
    norm: NormSpec | None
    decay_range: DecayRange = (1.0, 16.0)
    step_range: StepRange = (0.001, 0.1)
    norm_placement: NormPlacement | None = None
    scan_backends: ScanBackends = ("torch",)
    gate_rank: Absent[Count | None] = None
    conv_bias: Absent[bool] = False

    @property
    def key_heads(self) -> int:
        """Number of key heads, by default one for each head."""
        return self.num_key_heads or self.num_heads

    def scan_case(self, device: str, dtype: str) -> ScanCase:
        """Return the case that a backend of the scan must support."""
        return ScanCase(self.class_name, device, dtype, self.key_dim)

    @property
    def key_width(self) -> int:
        """Channels of all keys."""
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Channels of all values."""
        return self.num_heads * self.value_dim

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_width + self.value_width

    @property
    def split_width(self) -> int:
        """Output channels of the maps from hidden states that tensor ranks split."""
        return self.conv_channels + self.num_heads

    @property
    def latent_width(self) -> int:
        """Output channels of the maps to latent vectors; tensor ranks do not split them."""
        return 0

    @property
    def inner_width(self) -> int:
        """Output channels of the maps from latent vectors."""
        return 0

    @property
    def vector_parameters(self) -> int:
        """Parameters of decays, step biases and skips."""
        return 2 * self.num_heads

    @property
    def norm_width(self) -> int:
        """Channels of the output norm: those of a head, or of all heads of a grouped norm."""
        return self.value_width if self.groups_norm else self.value_dim

    def count_matrix_parameters(self, dim: int) -> int:
        """Count the parameters of all matrices, without the convolution."""
        inner = self.inner_width * (self.gate_rank or 0)
        return dim * (self.split_width + self.value_width + self.latent_width) + inner

    def count_parameters(self, dim: int) -> int:
        """Count the parameters of matrices, convolution, norm and vectors."""
        taps = self.conv_channels * (self.conv_size + self.conv_bias)
        return self.count_matrix_parameters(dim) + taps + self._norms + self.vector_parameters

    def whole_parameters(self, dim: int) -> int:
        """Count the parameters that tensor parallelism does not split."""
        return dim * self.latent_width + (0 if self.groups_norm else self._norms)

    @property
    def _norms(self) -> int:
        return self.norm.count_parameters(self.norm_width) if self.norm else 0

    @property
    def state_flops(self) -> int:
        """FLOPs of a token's products with the states, forward, token by token."""
        return 2 * self.state_products * self.num_heads * self.key_dim * self.value_dim

    @property
    def scan_flops(self) -> int:
        """FLOPs per token of the chunked scan, forward: scores, chunk outputs and states."""
        scores, outputs = self.key_heads * self.key_dim, self.num_heads * self.value_dim
        corrects = self.state_products == 3
        scored = (1 + corrects) * scores * self.scored_tokens
        pairs = outputs + corrects * (self.value_width + self._recalled) / 2
        return round(2 * (scored + self.chunk_tokens * pairs)) + self.state_flops

    @property
    def scored_tokens(self) -> int:
        """Tokens that a token's products of queries and keys are computed with."""
        return self.chunk_tokens

    @property
    def _recalled(self) -> int:
        """Channels of the keys that recall the state: one key for each head."""
        return self.num_heads * self.key_dim


class NamedMixers(Mapping[str, MixerSpec]):
    """Linear mixers by name; hashable, since a layout search caches by the model."""

    def __init__(self, mixers: Mapping[str, MixerSpec] = MappingProxyType({})) -> None:
        self._mixers = dict(mixers)

    def __getitem__(self, name: str) -> MixerSpec:
        return self._mixers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._mixers)

    def __len__(self) -> int:
        return len(self._mixers)

    def __hash__(self) -> int:
        return hash(tuple(self._mixers.items()))


class GatedDeltaNetSpec(MixerSpec):
    """Gated delta net: a state corrects the value of a key, and decays by one factor."""

    target: ClassVar[str] = "components.model.mixers.gated_delta_net.GatedDeltaNet"

    norm: NormSpec
    num_key_heads: Heads | None = None
    negative_eigenvalues: bool = False

    @property
    def split_width(self) -> int:
        """Output channels of queries, keys, values, output gate, decay and step size."""
        return super().split_width + self.value_width + self.num_heads


class KimiDeltaSpec(MixerSpec):
    """Kimi delta attention: a gated delta net with a decay for each channel of a key.

    Decays and output gates are maps from vectors with ``gate_rank`` channels.
    """

    target: ClassVar[str] = "components.model.mixers.kimi_delta.KimiDelta"
    chunk_tokens: ClassVar[int] = 32
    direct_tokens: ClassVar[int] = 4  # of a block with a decay per channel for each pair

    norm: NormSpec
    gate_rank: Count

    @property
    def latent_width(self) -> int:
        """Output channels of the maps to the two latent vectors."""
        return 2 * self.gate_rank

    @property
    @override
    def scored_tokens(self) -> int:
        """Those of a token's block, and those of earlier blocks, with which halves join."""
        return self.direct_tokens + (self.chunk_tokens - self.direct_tokens) // 2

    @property
    def inner_width(self) -> int:
        """Output channels of decays and output gates."""
        return self.key_width + self.value_width

    @property
    def vector_parameters(self) -> int:
        """Parameters of decays, and biases of all decays' channels."""
        return self.num_heads + self.key_width


class Mamba2Spec(MixerSpec):
    """Mamba-2: a state decays by one factor and adds values; keys are B, queries are C.

    Published names: ``num_key_heads`` is ``n_groups``, ``key_dim`` the state size,
    ``value_dim`` the width of a head. The output norm is over a group's channels, before or
    after the gate; without it, the output is only gated. Step sizes are within ``step_limits``.
    """

    target: ClassVar[str] = "components.model.mixers.mamba2.Mamba2"
    state_products: ClassVar[int] = 2  # write and read
    groups_norm: ClassVar[bool] = True

    num_key_heads: Heads
    conv_bias: bool
    norm_before_gate: bool = False
    step_limits: StepLimits = (0.0, None)

    @property
    def split_width(self) -> int:
        """Output channels of output gate, values, B, C and step size."""
        return super().split_width + self.value_width

    @property
    def vector_parameters(self) -> int:
        """Parameters of decays, step biases and skips."""
        return 3 * self.num_heads
