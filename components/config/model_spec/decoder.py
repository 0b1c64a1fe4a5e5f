"""Specification of a decoder, and the parameter counts that follow from it.

A build on ``meta`` must agree to the last digit; the tests compare the two.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

from components.attention_windows import causal_keys, visible_keys
from components.config.model_spec.attention import AttentionSpec
from components.config.model_spec.feed_forward import FeedForwardSpec
from components.config.model_spec.initialization import NormalSpec
from components.config.model_spec.mtp import MTPSpec
from components.config.model_spec.norms import NormSpec
from components.config.model_spec.parametrization import MuPSpec
from components.config.model_spec.positions import PositionsSpec
from components.config.schema.part import ModelPartSpec
from components.ranges import BelowOne, Count, Layers, NonNegative, Place, Positive


class DecoderSpec(ModelPartSpec):
    """A decoder with norms in its layers and a final one; None is a feature it does not have.

    ``init_from`` names the folder of weights that a run begins with, or is ``none``. With a
    ``dense_mlp`` the first ``num_dense_layers`` have it in place of the ``mlp``. With a
    ``logit_cap`` logits are ``cap * tanh(logits / cap)``. ``z_loss`` weighs the penalty of
    `components.model.loss.penalized_cross_entropy`. ``embedding_scale`` multiplies embedded
    tokens, not the rows of a tied head, by ``sqrt(dim)``
    (https://arxiv.org/abs/1706.03762, section 3.4), rounded to their precision.
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
    norm_placement: Literal["before", "after", "both"] = "before"
    dense_mlp: FeedForwardSpec | None = None
    num_dense_layers: Layers = 1
    logit_cap: Positive | None = None
    mtp: MTPSpec | None = None
    embedding_scale: Literal["none", "sqrt_dim"] = "none"
    z_loss: NonNegative = 0.0
    parametrization: MuPSpec | None = None

    def model_copy(
        self, *, update: Mapping[str, Any] | None = None, deep: bool = False
    ) -> Self:
        """Copy the fields alone: what was derived from those that change would be stale."""
        bare = self.model_construct(self.model_fields_set, **dict(self))
        return super(DecoderSpec, bare).model_copy(update=update, deep=deep)

    # A search asks the same shape a hundred thousand times: what it derives is kept.
    @cached_property
    def leading_layers(self) -> int:
        """Layers at the begin that have the ``dense_mlp``."""
        return self.num_dense_layers if self.dense_mlp is not None else 0

    @cached_property
    def dense(self) -> Self:
        """A decoder all of whose layers are like the leading ones."""
        return self.model_copy(update={"mlp": self.dense_mlp, "dense_mlp": None})

    def visible_keys(self, sequence_length: int) -> tuple[int, ...]:
        """List how many keys a query of each layer sees at most: its window, or all."""
        return visible_keys(self.attention.windows, self.num_layers, sequence_length)

    def causal_keys(self, sequence_length: int) -> float:
        """Count the keys that a query sees in all layers together, in the mean over queries."""
        return causal_keys(self.attention.windows, self.num_layers, sequence_length)

    @property
    def vocabulary_matrices(self) -> int:
        """Matrices of vocabulary rows: one if the ends are tied."""
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
        layers = self.num_layers - self.leading_layers
        return layers * experts * self.mlp.expert_parameters(self.dim)

    @property
    def norms_per_layer(self) -> int:
        """Norms of whole hidden states: one or two for attention, as many for the MLP."""
        return 4 if self.norm_placement == "both" else 2

    @cached_property
    def layer_parameters(self) -> int:
        """One layer with all its experts, if it is none of the leading ones."""
        experts = self.mlp.num_experts or 1
        return (
            self.attention.parameters(self.dim)
            + experts * self.mlp.expert_parameters(self.dim)
            + self.mlp.shared_parameters(self.dim)
            + self.mlp.router_parameters(self.dim)
            + self.norms_per_layer * self.norm.parameters(self.dim)
        )

    @property
    def mtp_depth(self) -> int:
        """Blocks that predict further tokens, 0 where there are none."""
        return 0 if self.mtp is None else self.mtp.depth

    @property
    def mtp_whole_parameters(self) -> int:
        """What one of them has beside its layer: the map of two vectors to one, three norms."""
        return 2 * self.dim**2 + 3 * self.norm.parameters(self.dim)

    @property
    def mtp_parameters(self) -> int:
        """Parameters of all of them, which `total_parameters` leaves out, as publishers do."""
        return self.mtp_depth * (self.layer_parameters + self.mtp_whole_parameters)

    @property
    def shares_ends(self) -> bool:
        """Whether the last stage of a pipeline has the embedding, too."""
        return self.tied_embeddings or self.mtp is not None

    @cached_property
    def whole_parameters(self) -> int:
        """Parameters of one layer that each tensor rank holds whole."""
        count = self.norms_per_layer * self.norm.parameters(self.dim)
        count += self.mlp.router_parameters(self.dim)
        count += self.mlp.activation_parameters + self.attention.down_matrices(self.dim)
        if self.attention.norms_heads or self.attention.latent_norm is not None:
            count += self.attention.norm_parameters
        return count

    @cached_property
    def layer_matrices(self) -> int:
        """Parameters of one layer's matrices and all its experts', without the router."""
        mlp, dim = self.mlp, self.dim
        widths = (mlp.num_experts or 1) * mlp.ffn_dim + (mlp.shared_ffn_dim or 0)
        maps = 3 if mlp.gated else 2
        return self.attention.matrices(dim) + dim * maps * widths

    def over_layers(self, count: Callable[[Self], int]) -> int:
        """Add up what ``count`` finds in a layer, over all layers of both kinds."""
        leading = self.leading_layers
        dense = leading * count(self.dense) if leading else 0
        return dense + (self.num_layers - leading) * count(self)

    @property
    def total_parameters(self) -> int:
        """Parameters of the published checkpoint: without the rows added for training."""
        entry = self.embedding_norm.parameters(self.dim) if self.embedding_norm else 0
        ends = self.embedding_parameters + self.position_parameters + entry
        layers = self.over_layers(lambda shape: shape.layer_parameters)
        return ends + layers + self.norm.parameters(self.dim)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: of the experts, the ``top_k`` that it is sent to."""
        layers = self.num_layers - self.leading_layers
        idle = layers * ((self.mlp.num_experts or 1) - (self.mlp.top_k or 1))
        return self.total_parameters - idle * self.mlp.expert_parameters(self.dim)

    @property
    def is_unscaled(self) -> bool:
        """Whether no parametrization multiplies embeddings, branches or logits."""
        base = self.parametrization
        if base is None:
            return True
        deep = base.base_layers not in {None, self.num_layers} and base.depth_exponent != 0
        ends = base.embedding_multiplier == 1 and base.output_multiplier == 1
        return base.base_dim == self.dim and ends and not deep
