"""What a class of Hugging Face takes for granted; some of it several classes do."""

from dataclasses import dataclass

from components.convert.features import Features


@dataclass(frozen=True)
class Need:
    """One feature that a class has for good, and whether the model has it too."""

    key: str
    is_met: bool
    has: str


def rotary_positions(features: Features) -> Need:
    """Ask for RoPE in every layer."""
    return Need("model.positions", features.positions == "Rotary", "it has rotary positions")


def rms_norm(features: Features) -> Need:
    """Ask for RMSNorm, whose weight is its only parameter."""
    norm = features.norm
    return Need("model.norm", norm.is_rms, f"it has RMSNorm with weight, here is {norm}")


def layer_norm(features: Features) -> Need:
    """Ask for LayerNorm with both vectors."""
    norm = features.norm
    has = f"it has LayerNorm with weight and bias, here is {norm}"
    return Need("model.norm", norm.is_layer_norm, has)


def no_experts(features: Features) -> Need:
    """Ask for one MLP a layer."""
    return Need("model.mlp.num_experts", features.num_experts is None, "it is dense")


def plain_mlp(features: Features) -> Need:
    """Ask for two matrices a layer."""
    has = "its MLP is plain: neither gated nor of experts"
    return Need("model.mlp", features.has_plain_mlp, has)


def all_biases(features: Features) -> Need:
    """Ask for a bias in each map of attention and MLP."""
    is_met = features.attention_bias and features.mlp_bias
    return Need("model.attention.bias", is_met, "all its maps have biases")


def keys_for_each_query(features: Features) -> Need:
    """Ask for multi-head attention, without groups."""
    is_met = features.num_kv_heads == features.num_heads
    return Need("model.attention.num_kv_heads", is_met, "it has as many as query heads")


def even_heads(features: Features) -> Need:
    """Ask for heads as wide as their part of the residual stream."""
    has = "its heads divide the width among them"
    return Need("model.attention.head_dim", features.splits_evenly, has)


def no_qk_norm(features: Features) -> Need:
    """Ask for queries and keys as they are projected."""
    has = "it does not normalize queries and keys"
    return Need("model.attention.qk_norm", features.qk_norm is None, has)


def no_embedding_norm(features: Features) -> Need:
    """Ask for embeddings as they are looked up."""
    has = "it does not normalize embeddings"
    return Need("model.embedding_norm", features.embedding_norm is None, has)
