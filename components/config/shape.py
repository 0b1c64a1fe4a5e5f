"""The numbers of a decoder that arithmetic needs, read from the ``model`` section.

Fields, not class names, carry what is counted, so a new part that uses the same fields is
counted too. A build on ``meta`` must agree to the last digit; the tests compare the two.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from components.attention_windows import Window, causal_keys, visible_keys
from components.config.schema.types import Balance, Count
from components.errors import RecipeError
from components.ranges import Heads, Layers


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class NormShape(_Part):
    """Vectors of one norm."""

    weight: bool
    bias: bool

    def parameters(self, width: int) -> int:
        return width * (self.weight + self.bias)


class AttentionShape(_Part):
    """Projections of one attention block, and its norms of queries and of keys.

    With a ``key_value_rank`` it is latent attention (`components.model.latent_attention`).
    """

    num_heads: Heads
    num_kv_heads: Heads
    head_dim: Count
    bias: bool = False
    qk_norm: NormShape | None = None
    qk_norm_over: Literal["all_heads", "each_head"] = "all_heads"
    windows: Annotated[tuple[Window, ...], Field(strict=False)] = ("full",)
    scale_dim: Count | None = None
    key_value_rank: Count | None = None
    query_rank: Count | None = None
    rotary_dim: Count = 1
    value_dim: Count | None = None
    latent_norm: NormShape | None = None

    def parameters(self, dim: int) -> int:
        count = self.matrices(dim) + self.norm_parameters
        if self.bias:
            queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
            count += queries + 2 * keys + dim
        return count

    def matrices(self, dim: int) -> int:
        """Parameters of all matrices."""
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        if self.key_value_rank is None:
            return dim * (2 * queries + 2 * keys)
        cut = (self.query_rank or dim) * queries + self.key_value_rank * self.inner_width
        return self.down_matrices(dim) + cut + dim * self.num_heads * self.values

    def down_matrices(self, dim: int) -> int:
        """Parameters of the maps to latent vectors, which tensor ranks hold whole."""
        return dim * self.latent_width

    @property
    def latent_width(self) -> int:
        """Numbers of a token's latent vectors, with what rotates of all keys."""
        if self.key_value_rank is None:
            return 0
        return (self.query_rank or 0) + self.key_value_rank + self.rotary_dim

    @property
    def inner_width(self) -> int:
        """Numbers that a latent vector is made to: keys but for what rotates, and values."""
        return self.num_heads * (self.head_dim - self.rotary_dim + self.values)

    @property
    def values(self) -> int:
        """Width of a head's values."""
        return self.value_dim or self.head_dim

    @property
    def norm_parameters(self) -> int:
        """Parameters of the norms of queries and of keys, 0 where there are none."""
        if self.latent_norm is not None:
            return self.latent_norm.parameters((self.query_rank or 0) + self._rank)
        if self.qk_norm is None:
            return 0
        heads = 2 if self.norms_heads else self.num_heads + self.num_kv_heads
        return self.qk_norm.parameters(heads * self.head_dim)

    @property
    def _rank(self) -> int:
        return self.key_value_rank or 0

    @property
    def norms_heads(self) -> bool:
        """Whether queries and keys are normalized head by head."""
        return self.qk_norm is not None and self.qk_norm_over == "each_head"


class MTPShape(_Part):
    """Blocks after the last layer that predict further tokens."""

    depth: Layers


class ParametrizationShape(_Part):
    """The smaller model whose rates and first weights this one follows."""

    base_dim: Count
    base_layers: Layers | None = None
    depth_exponent: float = 1.0
    embedding_multiplier: float = 1.0
    output_multiplier: float = 1.0


TRAINED_SCALARS = {"xielu": 2}


class MLPShape(_Part):
    """Projections of one feed-forward block, with a third one if gated, or of many experts.

    Beside experts there may be a block of ``shared_ffn_dim`` that all tokens go through.
    """

    ffn_dim: Count
    gated: bool
    bias: bool = False
    activation: str | None = None
    num_experts: Count | None = None
    top_k: Count | None = None
    shared_ffn_dim: Count | None = None
    num_groups: Count = 1
    top_groups: Count = 1

    def expert_parameters(self, dim: int) -> int:
        """Parameters of one expert, or of the dense block."""
        up_matrices = 2 if self.gated else 1
        count = (up_matrices + 1) * dim * self.ffn_dim + self.activation_parameters
        return count + (up_matrices * self.ffn_dim + dim if self.bias else 0)

    @property
    def activation_parameters(self) -> int:
        """Trained scalars of the activation."""
        return TRAINED_SCALARS.get(self.activation or "", 0)

    def shared_parameters(self, dim: int) -> int:
        """Parameters of what all tokens go through beside their experts."""
        return (3 if self.gated else 2) * dim * (self.shared_ffn_dim or 0)

    def router_parameters(self, dim: int) -> int:
        return dim * (self.num_experts or 0)


class PositionsShape(_Part):
    """A row for each position, where positions are learned; a base, where heads are rotated.

    Each ``skip_every``-th layer leaves the rotation out; those with a window may have a base
    of their own.
    """

    num_positions: Count | None = None
    base: float | None = None
    skip_every: Layers | None = None
    local_base: float | None = None

    def turned_layers(self, num_layers: int) -> int:
        """Count the layers that rotate queries and keys."""
        if self.base is None:
            return 0
        return num_layers - (num_layers // self.skip_every if self.skip_every else 0)


class ModelShape(_Part):
    """A decoder with norms in its layers and a final one; an absent key is an absent feature.

    Where there is a ``dense_mlp``, the first layers have it in place of experts.
    """

    dim: Count
    num_layers: Layers
    vocab_size: Count
    padded_vocab_size: Count
    tied_embeddings: bool
    attention: AttentionShape
    mlp: MLPShape
    norm: NormShape
    positions: PositionsShape
    embedding_norm: NormShape | None = None
    norm_placement: Literal["before", "after", "both"] = "before"
    embedding_scale: Literal["none", "sqrt_dim"] = "none"
    dense_mlp: MLPShape | None = None
    num_dense_layers: Layers = 1
    logit_cap: float | None = None
    mtp: MTPShape | None = None
    z_loss: float = 0.0
    parametrization: ParametrizationShape | None = None

    def model_copy(
        self, *, update: Mapping[str, Any] | None = None, deep: bool = False
    ) -> Self:
        """Copy the fields alone: what was derived from those that change would be stale."""
        bare = self.model_construct(self.model_fields_set, **dict(self))
        return super(ModelShape, bare).model_copy(update=update, deep=deep)

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


def divisors(number: int) -> list[int]:
    """List the divisors of ``number``."""
    return [n for n in range(1, number + 1) if number % n == 0]


def stage_layers(num_layers: int, stages: int, balance: Balance) -> tuple[range, ...]:
    """Cut ``num_layers`` into one contiguous range a stage, at least one layer each.

    What does not divide goes to the middle: the first stage holds the embedding and, under
    1F1B, the activations of the most microbatches; the last one the head and the logits.
    ``layers`` evens out the layers alone; ``layers_and_ends`` counts the embedding and the head
    as one layer each, as DeepSpeed's ``partition_method='type:transformer|embedding'`` does.
    Layers are dealt one by one to the stage with the least, the one nearest the middle first.

    Raises:
        RecipeError: there are more stages than layers.
    """
    if stages > num_layers:
        problem = f"{stages} stages for {num_layers} layers would leave some without a layer"
        remedy = f"pipeline x stages_per_rank may be {num_layers} at most"
        raise RecipeError("parallelism.pipeline", problem, remedy)
    load = [1] * stages
    if balance == "layers_and_ends":
        load[0] += 1
        load[-1] += 1
    counts = [1] * stages
    for _ in range(num_layers - stages):
        taker = min(range(stages), key=lambda stage: (load[stage], abs(2 * stage - stages + 1)))
        load[taker] += 1
        counts[taker] += 1
    ends = zip(accumulate(counts), counts, strict=True)
    return tuple(range(end - count, end) for end, count in ends)
