"""The numbers of a decoder that arithmetic needs, read from the ``model`` section.

Fields, not class names, carry what is counted, so a new part that uses the same fields is
counted too. A build on ``meta`` must agree to the last digit; the tests compare the two.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from components.errors import RecipeError
from components.spec.sections import Count


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class AttentionShape(_Part):
    """Projections of one attention block."""

    num_heads: Count
    num_kv_heads: Count
    head_dim: Count
    bias: bool


class MLPShape(_Part):
    """Projections of one feed-forward block; a gated one has a third matrix."""

    ffn_dim: Count
    gated: bool
    bias: bool


class NormShape(_Part):
    """Vectors of one norm."""

    weight: bool
    bias: bool


class ModelShape(_Part):
    """A dense decoder with two norms a layer and a final one."""

    dim: Count
    num_layers: Count
    vocab_size: Count
    padded_vocab_size: Count
    tied_embeddings: bool
    attention: AttentionShape
    mlp: MLPShape
    norm: NormShape
    positions: Annotated[Mapping[str, Any], Field()]

    @property
    def head_rows(self) -> int:
        """Matrices of vocabulary rows: one if the ends are tied."""
        return 1 if self.tied_embeddings else 2

    @property
    def embedding_parameters(self) -> int:
        return self.head_rows * self.vocab_size * self.dim

    @property
    def padding_parameters(self) -> int:
        return self.head_rows * (self.padded_vocab_size - self.vocab_size) * self.dim

    @property
    def norm_parameters(self) -> int:
        return self.dim * (int(self.norm.weight) + int(self.norm.bias))

    @property
    def layer_parameters(self) -> int:
        return self._attention() + self._mlp() + 2 * self.norm_parameters

    @property
    def total_parameters(self) -> int:
        """Parameters of the published checkpoint: without the rows added for training."""
        return (
            self.embedding_parameters
            + self.num_layers * self.layer_parameters
            + self.norm_parameters
        )

    def _attention(self) -> int:
        queries = self.attention.num_heads * self.attention.head_dim
        keys = self.attention.num_kv_heads * self.attention.head_dim
        weights = self.dim * (2 * queries + 2 * keys)
        return weights + (queries + 2 * keys + self.dim if self.attention.bias else 0)

    def _mlp(self) -> int:
        up_matrices = 2 if self.mlp.gated else 1
        weights = (up_matrices + 1) * self.dim * self.mlp.ffn_dim
        return weights + (up_matrices * self.mlp.ffn_dim + self.dim if self.mlp.bias else 0)


def check_shape(shape: ModelShape) -> None:
    """Hold the rules between the numbers of one model.

    Raises:
        RecipeError: query heads that do not divide among the key/value heads, or a padded
            vocabulary smaller than the vocabulary.
    """
    heads, groups = shape.attention.num_heads, shape.attention.num_kv_heads
    if heads % groups:
        legal = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise RecipeError(
            "model.attention.num_kv_heads",
            f"{groups} does not divide num_heads {heads}",
            f"values that do: {legal}",
        )
    if shape.padded_vocab_size < shape.vocab_size:
        raise RecipeError(
            "model.padded_vocab_size",
            f"{shape.padded_vocab_size:,} is below vocab_size {shape.vocab_size:,}",
            f"give at least {shape.vocab_size:,}",
        )
