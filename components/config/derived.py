"""Numbers that follow from a recipe: parameters, steps, microbatches and FLOPs."""

from typing import Self

from pydantic import Field

from components.config.model_spec.decoder import DecoderSpec
from components.config.schema.types import Section


class ParameterCounts(Section):
    """Parameter counts by kind; ``total`` excludes ``padding`` and ``mtp``."""

    total: int
    active: int
    embedding: int
    expert: int
    padding: int
    mtp: int = Field(exclude_if=lambda count: not count)

    @classmethod
    def from_spec(cls, shape: DecoderSpec) -> Self:
        return cls(**{name: getattr(shape, f"{name}_parameters") for name in cls.model_fields})


class FlopsPerToken(Section):
    """FLOPs of forward and backward for one token, without recomputation.

    ``full`` counts the whole attention matrix, ``causal`` half of it. Each parameter that a
    token is multiplied with counts 6 (its experts; the tied matrix once; no look-up). The
    attention products count 12 x layers x attention width x sequence (Narayanan et al. 2021,
    arXiv 2104.04473, section 5.1, per token). In a layer with a window, the window replaces the
    sequence (as in OLMo-core and nanochat); ``causal`` counts the visible pairs. Each ``mtp``
    depth adds a layer like the last, a map of two vectors, and the head. Products with the
    states of linear mixers count as in a scan token by token.
    """

    full: int
    causal: int

    @classmethod
    def from_spec(cls, shape: DecoderSpec, sequence_length: int) -> Self:
        looked_up = shape.position_parameters
        if not shape.tied_embeddings:
            looked_up += shape.vocab_size * shape.dim
        depth, idle = shape.mtp_depth, (shape.mlp.num_experts or 1) - (shape.mlp.top_k or 1)
        again = shape.layer_parameters - idle * shape.mlp.expert_parameters(shape.dim)
        again += shape.mtp_whole_parameters + shape.vocab_size * shape.dim
        products = 6 * (shape.active_parameters - looked_up + depth * again)
        width = shape.attention.product_width
        visible = shape.visible_keys(sequence_length)
        last = visible[-1] if visible else 0
        products += 3 * shape.state_flops()  # forward and backward
        full = 6 * width * (sum(visible) + depth * last)
        pairs = depth * (last - last**2 / (2 * sequence_length))
        causal = round(6 * width * (shape.causal_keys(sequence_length) + pairs))
        return cls(full=products + full, causal=products + causal)


class DerivedNumbers(Section):
    """Derived numbers of one recipe."""

    parameters: ParameterCounts
    tokens_per_step: int
    samples_per_step: int
    steps: int
    ranks: int
    microbatches_per_step: int
    layers_by_stage: tuple[int, ...]
    flops_per_token: FlopsPerToken
