"""FLOPs a token in the conventions in which speeds are published.

The same run has other TFLOP/s in each: a rate without its convention compares with nothing.
N are the parameters that a token is multiplied with, L layers, h the attention's width, s the
sequence.
"""

from components.spec.derived import FlopsPerToken
from components.spec.shape import ModelShape


def flops_by_convention(
    shape: ModelShape, sequence_length: int, *, pipeline: int
) -> dict[str, float]:
    """Count FLOPs a token of forward and backward in seven conventions.

    ``full`` 6 N + 12 L h s (torchtitan, OLMo-core, MosaicML's llm-foundry, nanotron's counter);
    ``causal`` 6 N + 6 L h s (Megatron-Bridge, MaxText); ``causal_recomputed_attention``
    6 N + 7 L h s (lingua); ``fourfold`` 4 / 3 of ``full`` (programs that count a recomputed
    forward pass whenever anything is recomputed); ``ends_twice`` has tied ends of a pipeline in
    N twice (``mfu`` of the playbook's table); ``megatron_logged`` and
    ``megatron_logged_fourfold`` are equation 3 of Narayanan et al. 2021 (arXiv 2104.04473) as
    Megatron-LM printed it in 2023, which takes every MLP for four widths and every head for a
    query's.
    """
    flops = FlopsPerToken.of(shape, sequence_length)
    once = (flops.full - flops.causal) / 6  # L h s
    again = shape.vocab_size * shape.dim if shape.tied_embeddings and pipeline > 1 else 0
    logged = megatron_logged(shape, sequence_length)
    return {
        "full": flops.full,
        "causal": flops.causal,
        "causal_recomputed_attention": flops.causal + once,
        "fourfold": flops.full * 4 / 3,
        "ends_twice": flops.full + 6 * again,
        "megatron_logged": 3 * logged,
        "megatron_logged_fourfold": 4 * logged,
    }


def megatron_logged(shape: ModelShape, sequence_length: int) -> float:
    """Return c L h^2 (1 + s / 6 h + V / 16 L h) of a forward pass: c is 24, 32 with a gate."""
    layers, dim = shape.num_layers, shape.dim
    factor = 32 if shape.mlp.gated else 24
    ends = 1 + sequence_length / (6 * dim) + shape.padded_vocab_size / (16 * layers * dim)
    return factor * layers * dim**2 * ends
