"""Numbers that follow from a recipe: parameters, steps, microbatches and FLOPs."""

from typing import Self

from pydantic import Field

from components.config.model_spec.decoder import DecoderSpec
from components.config.schema.types import Section


class ParameterCounts(Section):
    """Parameters by what they are; ``padding`` and ``mtp`` are beside the total, not in it."""

    total: int
    active: int
    embedding: int
    expert: int
    padding: int
    mtp: int = Field(exclude_if=lambda count: not count)

    @classmethod
    def of(cls, shape: DecoderSpec) -> Self:
        return cls(**{name: getattr(shape, f"{name}_parameters") for name in cls.model_fields})


class FlopsPerToken(Section):
    """FLOPs of forward and backward for one token, without any recomputation.

    ``full`` counts the whole attention matrix, ``causal`` half of it. Six for each parameter
    that a token is multiplied with (its experts; the tied matrix once; no look-up), and
    12 x layers x attention width x sequence for the attention products (Narayanan et al. 2021,
    arXiv 2104.04473, section 5.1, in its per-token form). A layer with a window has that for
    the sequence (as in OLMo-core and nanochat), and ``causal`` its visible pairs. Each depth of
    ``mtp`` is a further layer like the last, with its map of two vectors and the head again.
    """

    full: int
    causal: int

    @classmethod
    def of(cls, shape: DecoderSpec, sequence_length: int) -> Self:
        looked_up = shape.position_parameters
        if not shape.tied_embeddings:
            looked_up += shape.vocab_size * shape.dim
        depth, idle = shape.mtp_depth, (shape.mlp.num_experts or 1) - (shape.mlp.top_k or 1)
        again = shape.layer_parameters - idle * shape.mlp.expert_parameters(shape.dim)
        again += shape.mtp_whole_parameters + shape.vocab_size * shape.dim
        products = 6 * (shape.active_parameters - looked_up + depth * again)
        heads = shape.attention
        width = heads.num_heads * (heads.head_dim + heads.values)  # of scores, and of values
        seen = shape.visible_keys(sequence_length)
        last = seen[-1]
        full = 6 * width * (sum(seen) + depth * last)
        pairs = depth * (last - last**2 / (2 * sequence_length))
        causal = round(6 * width * (shape.causal_keys(sequence_length) + pairs))
        return cls(full=products + full, causal=products + causal)


class DerivedNumbers(Section):
    """All derived numbers of one recipe."""

    parameters: ParameterCounts
    tokens_per_step: int
    samples_per_step: int
    steps: int
    ranks: int
    microbatches_per_step: int
    layers_by_stage: tuple[int, ...]
    flops_per_token: FlopsPerToken
