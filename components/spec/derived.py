"""Numbers that follow from a recipe: counts, steps, FLOPs a token."""

from typing import Self

from components.spec.section import Section
from components.spec.shape import ModelShape


class ParameterCounts(Section):
    """Parameters by what they are; ``padding`` is beside the total, not in it."""

    total: int
    active: int
    embedding: int
    expert: int
    padding: int

    @classmethod
    def of(cls, shape: ModelShape) -> Self:
        return cls(
            total=shape.total_parameters,
            active=shape.active_parameters,
            embedding=shape.embedding_parameters,
            expert=shape.expert_parameters,
            padding=shape.padding_parameters,
        )


class FlopsPerToken(Section):
    """FLOPs of forward and backward for one token, without any recomputation.

    ``full`` counts the whole attention matrix, ``causal`` half of it. Six for each parameter
    that a token is multiplied with (its experts; the tied matrix once; no look-up), and
    12 x layers x attention width x sequence for the attention products (Narayanan et al. 2021,
    arXiv 2104.04473, section 5.1, in its per-token form).
    """

    full: int
    causal: int

    @classmethod
    def of(cls, shape: ModelShape, sequence_length: int) -> Self:
        looked_up = shape.position_parameters
        if not shape.tied_embeddings:
            looked_up += shape.vocab_size * shape.dim
        products = 6 * (shape.active_parameters - looked_up)
        width = shape.attention.num_heads * shape.attention.head_dim
        attention = 12 * shape.num_layers * width * sequence_length
        return cls(full=products + attention, causal=products + attention // 2)


class Derived(Section):
    """All derived numbers of one recipe."""

    parameters: ParameterCounts
    tokens_per_step: int
    samples_per_step: int
    steps: int
    ranks: int
    microbatches_per_step: int
    layers_by_stage: tuple[int, ...]
    flops_per_token: FlopsPerToken
