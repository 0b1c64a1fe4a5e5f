"""The numbers of a decoder that arithmetic needs, read from the ``model`` section.

Fields, not class names, carry what is counted, so a new part that uses the same fields is
counted too. A build on ``meta`` must agree to the last digit; the tests compare the two.
"""

from itertools import accumulate
from typing import Literal

from pydantic import BaseModel, ConfigDict

from components.config.schema.types import Count
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
    """Projections of one attention block, and its norms of queries and of keys."""

    num_heads: Heads
    num_kv_heads: Heads
    head_dim: Count
    bias: bool
    qk_norm: NormShape | None = None
    qk_norm_over: Literal["all_heads", "each_head"] = "all_heads"

    def parameters(self, dim: int) -> int:
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        count = dim * (2 * queries + 2 * keys)
        if self.bias:
            count += queries + 2 * keys + dim
        return count + self.norm_parameters

    @property
    def norm_parameters(self) -> int:
        """Parameters of the norms of queries and of keys, 0 where there are none."""
        if self.qk_norm is None:
            return 0
        heads = 2 if self.norms_heads else self.num_heads + self.num_kv_heads
        return self.qk_norm.parameters(heads * self.head_dim)

    @property
    def norms_heads(self) -> bool:
        """Whether queries and keys are normalized head by head."""
        return self.qk_norm is not None and self.qk_norm_over == "each_head"


TRAINED_SCALARS = {"xielu": 2}


class MLPShape(_Part):
    """Projections of one feed-forward block, with a third one if gated, or of many experts."""

    ffn_dim: Count
    gated: bool
    bias: bool = False
    activation: str | None = None
    num_experts: Count | None = None
    top_k: Count | None = None

    def expert_parameters(self, dim: int) -> int:
        """Parameters of one expert, or of the dense block."""
        up_matrices = 2 if self.gated else 1
        count = (up_matrices + 1) * dim * self.ffn_dim + self.activation_parameters
        return count + (up_matrices * self.ffn_dim + dim if self.bias else 0)

    @property
    def activation_parameters(self) -> int:
        """Trained scalars of the activation."""
        return TRAINED_SCALARS.get(self.activation or "", 0)

    def router_parameters(self, dim: int) -> int:
        return dim * (self.num_experts or 0)


class PositionsShape(_Part):
    """A row for each position, where positions are learned; a base, where heads are rotated.

    Each ``skip_every``-th layer leaves the rotation out.
    """

    num_positions: Count | None = None
    base: float | None = None
    skip_every: Layers | None = None

    def turned_layers(self, num_layers: int) -> int:
        """Count the layers that rotate queries and keys."""
        if self.base is None:
            return 0
        return num_layers - (num_layers // self.skip_every if self.skip_every else 0)


class ModelShape(_Part):
    """A decoder with two norms a layer and a final one; an absent key is an absent feature."""

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
    norm_placement: Literal["before", "after"] = "before"
    logit_cap: float | None = None

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
        return self.num_layers * experts * self.mlp.expert_parameters(self.dim)

    @property
    def layer_parameters(self) -> int:
        """One layer with all its experts."""
        experts = self.mlp.num_experts or 1
        return (
            self.attention.parameters(self.dim)
            + experts * self.mlp.expert_parameters(self.dim)
            + self.mlp.router_parameters(self.dim)
            + 2 * self.norm.parameters(self.dim)
        )

    @property
    def layer_matrices(self) -> int:
        """Parameters of one layer's matrices and all its experts', without the router."""
        attention, mlp, dim = self.attention, self.mlp, self.dim
        heads = 2 * attention.num_heads + 2 * attention.num_kv_heads
        maps = (3 if mlp.gated else 2) * (mlp.num_experts or 1)
        return dim * (heads * attention.head_dim + maps * mlp.ffn_dim)

    @property
    def total_parameters(self) -> int:
        """Parameters of the published checkpoint: without the rows added for training."""
        entry = self.embedding_norm.parameters(self.dim) if self.embedding_norm else 0
        ends = self.embedding_parameters + self.position_parameters + entry
        return ends + self.num_layers * self.layer_parameters + self.norm.parameters(self.dim)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: of the experts, the ``top_k`` that it is sent to."""
        idle = self.num_layers * ((self.mlp.num_experts or 1) - (self.mlp.top_k or 1))
        return self.total_parameters - idle * self.mlp.expert_parameters(self.dim)


def divisors(number: int) -> list[int]:
    """List the divisors of ``number``."""
    return [n for n in range(1, number + 1) if number % n == 0]


def check_shape(shape: ModelShape) -> None:
    """Raise a RecipeError for heads, vocabulary or experts that contradict each other."""
    heads, groups = shape.attention.num_heads, shape.attention.num_kv_heads
    if heads % groups:
        legal = ", ".join(map(str, divisors(heads)))
        problem = f"{groups} does not divide num_heads {heads}"
        raise RecipeError("model.attention.num_kv_heads", problem, f"values that do: {legal}")
    if shape.padded_vocab_size < shape.vocab_size:
        problem = f"{shape.padded_vocab_size:,} is below vocab_size {shape.vocab_size:,}"
        remedy = f"give at least {shape.vocab_size:,}"
        raise RecipeError("model.padded_vocab_size", problem, remedy)
    experts, top_k = shape.mlp.num_experts, shape.mlp.top_k
    if experts is not None and (top_k is None or top_k > experts):
        problem = f"a token cannot go to {top_k} of {experts} experts"
        raise RecipeError("model.mlp.top_k", problem, f"give a number from 1 to {experts}")


Balance = Literal["layers", "layers_and_ends"]


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
