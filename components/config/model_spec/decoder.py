"""Specification of a decoder, and its parameter counts.

Tests compare the counts with a build on the ``meta`` device; both must agree exactly.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import AfterValidator

from components.attention_windows import causal_keys, visible_keys
from components.config.model_spec.attention import AttentionSpec
from components.config.model_spec.feed_forward import FeedForwardSpec
from components.config.model_spec.initialization import NormalSpec
from components.config.model_spec.layers import DEFAULT, LayerType, Pattern, read_layer
from components.config.model_spec.mixers import MixerSpec, NamedMixers, NormPlacement
from components.config.model_spec.mtp import MTPSpec
from components.config.model_spec.norms import NormSpec
from components.config.model_spec.parametrization import (
    UNIT_FACTORS,
    ForwardFactors,
    MultipliersSpec,
)
from components.config.model_spec.positions import PositionsSpec
from components.config.schema.part import ModelPartSpec
from components.ranges import BelowOne, Count, Layers, NonNegative, Place, Positive


class LayerKey(NamedTuple):
    """Key of a kind of layers: text in the pattern, and whether they are leading layers."""

    text: str
    is_leading: bool


class DecoderSpec(ModelPartSpec):
    """Decoder with norms in its layers and a final norm; None means an absent feature.

    ``init_from`` is the folder of initial weights, or ``none``. With a ``dense_mlp`` the first
    ``num_dense_layers`` layers use it instead of ``mlp``. With a ``logit_cap`` logits are
    ``cap * tanh(logits / cap)``. ``z_loss`` is the weight of the penalty in
    `components.model.loss.penalized_cross_entropy`. ``embedding_scale: sqrt_dim`` multiplies
    embedded tokens, but not the rows of a tied head, by ``sqrt(dim)``
    (https://arxiv.org/abs/1706.03762, section 3.4), rounded to their precision. ``pattern``
    assigns layer types to layers (`components.config.model_spec.layers`), by default attention
    and MLP to each; ``mixers`` names the linear mixers in it.
    """

    target: ClassVar[str] = "components.model.decoder.Decoder"

    dim: Count
    num_layers: Layers
    vocab_size: Count
    padded_vocab_size: Count
    tied_embeddings: bool
    positions: PositionsSpec
    attention: AttentionSpec
    mlp: FeedForwardSpec
    norm: NormSpec
    initialization: NormalSpec
    embedding_norm: NormSpec | None = None
    dropout: BelowOne = 0.0
    init_from: Place = "none"
    norm_placement: NormPlacement = "before"
    dense_mlp: FeedForwardSpec | None = None
    num_dense_layers: Layers = 1
    logit_cap: Positive | None = None
    mtp: MTPSpec | None = None
    embedding_scale: Literal["none", "sqrt_dim"] = "none"
    z_loss: NonNegative = 0.0
    parametrization: MultipliersSpec | None = None
    pattern: Pattern | None = None
    mixers: Annotated[Mapping[str, MixerSpec], AfterValidator(NamedMixers)] = NamedMixers()

    def model_copy(
        self, *, update: Mapping[str, Any] | None = None, deep: bool = False
    ) -> Self:
        """Copy only the fields; cached properties would be stale."""
        bare = self.model_construct(self.model_fields_set, **dict(self))
        return super(DecoderSpec, bare).model_copy(update=update, deep=deep)

    # A layout search reads the same shape a hundred thousand times, so properties are cached.
    @cached_property
    def leading_layers(self) -> int:
        """Number of leading layers with the ``dense_mlp``."""
        return self.num_dense_layers if self.dense_mlp is not None else 0

    @cached_property
    def layer_types(self) -> Mapping[str, LayerType]:
        """Layer types of the pattern by their text."""
        return {text: read_layer(text, self.mixers) for text in self.pattern or (DEFAULT,)}

    @property
    def layer_type(self) -> LayerType:
        """Type of the layers of a decoder whose layers are all alike."""
        return self.layer_types[self.kind_of(0).text]

    def kind_of(self, index: int) -> LayerKey:
        """Return the kind of the layer at ``index``, counted from 0."""
        pattern = self.pattern or (DEFAULT,)
        return LayerKey(pattern[index % len(pattern)], index < self.leading_layers)

    @cached_property
    def _kind_counts(self) -> Mapping[LayerKey, int]:
        """Number of layers of each kind."""
        return Counter(map(self.kind_of, range(self.num_layers)))

    @cached_property
    def kind_shapes(self) -> Mapping[LayerKey, Self]:
        """Kinds of layers, each with a decoder in which all layers are of the kind."""
        return {kind: self._build_uniform(kind) for kind in self._kind_counts}

    def shape_of(self, index: int) -> Self:
        """Return a decoder in which all layers are like the layer at ``index``."""
        return self.kind_shapes[self.kind_of(index)]

    def _build_uniform(self, kind: LayerKey) -> Self:
        """Return a decoder with layers of one kind; absent parts have no parameters."""
        layer = self.layer_types[kind.text]
        changes: dict[str, Any] = {"pattern": (kind.text,), "dense_mlp": None}
        if kind.is_leading:
            changes["mlp"] = self.dense_mlp
        if not layer.has_attention:
            changes["attention"] = AttentionSpec.model_construct(
                num_heads=0, num_kv_heads=0, head_dim=0, backends=self.attention.backends
            )
        if not layer.has_mlp:
            changes["mlp"] = FeedForwardSpec.model_construct(ffn_dim=0, gated=self.mlp.gated)
        if layer.mixer is not None and layer.mixer.norm_placement is not None:
            changes["norm_placement"] = layer.mixer.norm_placement
        return self.model_copy(update=changes)

    def visible_keys(self, sequence_length: int) -> tuple[int, ...]:
        """Return the most keys that a query sees: a window, or all; per attention layer."""
        keys = visible_keys(self.attention.windows, self.num_layers, sequence_length)
        return keys if self.pattern is None else tuple(keys[n] for n in self._attention_layers)

    def causal_keys(self, sequence_length: int) -> float:
        """Return the keys that a query sees, summed over layers, averaged over queries."""
        if self.pattern is None:
            return causal_keys(self.attention.windows, self.num_layers, sequence_length)
        key_counts = self.visible_keys(sequence_length)
        return sum(keys - keys * keys / (2 * sequence_length) for keys in key_counts)

    @cached_property
    def _attention_layers(self) -> tuple[int, ...]:
        kinds = map(self.kind_of, range(self.num_layers))
        types = self.layer_types
        return tuple(n for n, kind in enumerate(kinds) if types[kind.text].has_attention)

    def layer_costs(self, sequence_length: int) -> tuple[int, ...]:
        """Return the forward FLOPs per token of each layer; empty if all layers are alike."""
        if self.pattern is None:
            return ()
        costs = {
            kind: shape._count_flops(sequence_length)
            for kind, shape in self.kind_shapes.items()
        }
        return tuple(costs[self.kind_of(layer)] for layer in range(self.num_layers))

    def _count_flops(self, sequence_length: int) -> int:
        """Count the forward FLOPs per token of one layer of a decoder of one kind."""
        idle = (self.mlp.num_experts or 1) - (self.mlp.top_k or 1)
        used = self.layer_parameters - idle * self.mlp.expert_parameters(self.dim)
        keys = self.causal_keys(sequence_length) / self.num_layers
        products = round(2 * self.attention.product_width * keys)
        return 2 * used + products + self.layer_state_flops

    def state_flops(self) -> int:
        """Return the FLOPs of a token's products with all states, forward."""
        return self.over_layers(lambda shape: shape.layer_state_flops)

    @property
    def layer_state_flops(self) -> int:
        """FLOPs of a token's products with the states of one layer, forward."""
        mixer = self.layer_type.mixer
        return 0 if mixer is None else mixer.state_flops

    @property
    def vocabulary_matrices(self) -> int:
        """Number of matrices with vocabulary rows: one if embedding and head are tied."""
        return 1 if self.tied_embeddings else 2

    @property
    def embedding_parameters(self) -> int:
        return self.vocabulary_matrices * self.vocab_size * self.dim

    @property
    def padding_parameters(self) -> int:
        rows = self.padded_vocab_size - self.vocab_size
        return self.vocabulary_matrices * rows * self.dim

    @property
    def position_parameters(self) -> int:
        return (self.positions.num_positions or 0) * self.dim

    @property
    def expert_parameters(self) -> int:
        """Parameters of all experts; 0 for a dense model."""
        experts = self.mlp.num_experts or 0
        return self.routed_layers * experts * self.mlp.expert_parameters(self.dim)

    @cached_property
    def routed_layers(self) -> int:
        """Number of layers with ``mlp``, not with ``dense_mlp`` or without an MLP."""
        return sum(
            count
            for kind, count in self._kind_counts.items()
            if self.layer_types[kind.text].has_mlp and not kind.is_leading
        )

    @property
    def norms_per_layer(self) -> int:
        """Norms of hidden states per layer: one or two for each branch."""
        return len(self.layer_type.branches) * (2 if self.norm_placement == "both" else 1)

    @cached_property
    def layer_parameters(self) -> int:
        """Parameters of one layer after the leading layers, with all its experts."""
        experts = self.mlp.num_experts or 1
        return (
            self.mixing_parameters
            + experts * self.mlp.expert_parameters(self.dim)
            + self.mlp.shared_parameters(self.dim)
            + self.mlp.router_parameters(self.dim)
            + self.norms_per_layer * self.norm.count_parameters(self.dim)
        )

    @property
    def mtp_depth(self) -> int:
        """Number of multi-token prediction blocks."""
        return 0 if self.mtp is None else self.mtp.depth

    @property
    def mtp_whole_parameters(self) -> int:
        """Parameters of an MTP block without its layer: a map of two vectors, three norms."""
        return 2 * self.dim**2 + 3 * self.norm.count_parameters(self.dim)

    @property
    def mtp_parameters(self) -> int:
        """Parameters of all MTP blocks; `total_parameters` excludes them, as publishers do."""
        return self.mtp_depth * (self.layer_parameters + self.mtp_whole_parameters)

    @property
    def shares_ends(self) -> bool:
        """Whether the last pipeline stage also holds the embedding."""
        return self.tied_embeddings or self.mtp is not None

    @property
    def mixing_parameters(self) -> int:
        """Parameters of attention and of the linear mixer of one layer."""
        mixer = self.layer_type.mixer
        count = self.attention.count_parameters(self.dim)
        return count + (mixer.count_parameters(self.dim) if mixer else 0)

    @cached_property
    def whole_parameters(self) -> int:
        """Parameters of one layer that tensor parallelism does not split."""
        count = self.norms_per_layer * self.norm.count_parameters(self.dim)
        count += self.mlp.router_parameters(self.dim)
        count += self.mlp.activation_parameters + self.dim * self.attention.latent_width
        if self.attention.norms_heads or self.attention.latent_norm is not None:
            count += self.attention.norm_parameters
        mixer = self.layer_type.mixer
        return count + (mixer.whole_parameters(self.dim) if mixer else 0)

    @cached_property
    def layer_matrices(self) -> int:
        """Parameters of the matrices of one layer and all its experts, without the router."""
        mlp, dim = self.mlp, self.dim
        widths = (mlp.num_experts or 1) * mlp.ffn_dim + (mlp.shared_ffn_dim or 0)
        maps, mixer = 3 if mlp.gated else 2, self.layer_type.mixer
        mixed = mixer.count_matrix_parameters(dim) if mixer else 0
        return self.attention.count_matrix_parameters(dim) + mixed + dim * maps * widths

    @property
    def down_matrices(self) -> int:
        """Parameters of a layer's maps to latent vectors; tensor ranks do not split them."""
        mixer = self.layer_type.mixer
        return self.dim * (self.attention.latent_width + (mixer.latent_width if mixer else 0))

    def over_layers(self, count: Callable[[Self], int]) -> int:
        """Return the sum of ``count`` over all layers, leading and other."""
        return sum(n * count(self.kind_shapes[kind]) for kind, n in self._kind_counts.items())

    @property
    def total_parameters(self) -> int:
        """Parameters of the published checkpoint, without padding rows."""
        entry = self.embedding_norm.count_parameters(self.dim) if self.embedding_norm else 0
        ends = self.embedding_parameters + self.position_parameters + entry
        layers = self.over_layers(lambda shape: shape.layer_parameters)
        return ends + layers + self.norm.count_parameters(self.dim)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: of the experts, only ``top_k``."""
        idle = self.routed_layers * ((self.mlp.num_experts or 1) - (self.mlp.top_k or 1))
        return self.total_parameters - idle * self.mlp.expert_parameters(self.dim)

    @property
    def factors(self) -> ForwardFactors:
        """Factors of the parametrization for embeddings, branches and logits."""
        if self.parametrization is None:
            return UNIT_FACTORS
        return self.parametrization.compute_factors(self.dim, self.num_layers)

    @property
    def is_unscaled(self) -> bool:
        """Whether no parametrization multiplies embeddings, branches or logits."""
        return self.factors == UNIT_FACTORS
