"""Rules of a model: contradictory numbers and incompatible parts."""

from components.attention_backends import check_order
from components.config.limits import check_at_least, check_at_most, check_divides
from components.config.model_spec.attention import AttentionSpec
from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.feed_forward import FeedForwardSpec
from components.config.model_spec.layers import check_pattern
from components.config.model_spec.mixers import MixerSpec
from components.config.model_spec.norms import NormSpec
from components.config.suggestions import list_divisors
from components.errors import RecipeError
from components.scan_backends import SCAN_BACKENDS


def check_shape(shape: DecoderSpec) -> None:
    """Raise a RecipeError for settings of a model that contradict each other."""
    heads, vocabulary = shape.attention.num_heads, shape.vocab_size
    _check_norms(shape)
    _check_positions(shape)
    check_order(shape.attention.backends)
    row, rows = shape.initialization.padding_row, shape.padded_vocab_size
    if row is not None and not 0 <= row < rows:
        problem, fix = (f"{row} is not one of {rows:,} rows", f"use 0 to {rows - 1:,}, or null")
        raise RecipeError("model.initialization.padding_row", problem, fix)
    groups = "model.attention.num_kv_heads"
    check_divides(groups, shape.attention.num_kv_heads, "model.attention.num_heads", heads)
    _check_latent(shape.attention)
    check_at_least("model.padded_vocab_size", rows, "model.vocab_size", vocabulary)
    _check_gate("model.mlp", shape.mlp)
    _check_experts(shape.mlp)
    if shape.dense_mlp is not None:
        _check_gate("model.dense_mlp", shape.dense_mlp)
        if shape.mlp.num_experts is None:
            problem = "dense_mlp replaces experts, but model.mlp has no experts"
            raise RecipeError("model.dense_mlp", problem, "set model.dense_mlp=null")
        most, name = shape.num_layers - 1, "num_layers - 1 ="
        check_at_most("model.num_dense_layers", shape.num_dense_layers, name, most)
    _check_mtp(shape)
    check_pattern(shape.pattern, shape.mixers, num_layers=shape.num_layers)
    for name, mixer in shape.mixers.items():
        _check_mixer(f"model.mixers.{name}", mixer)


def _check_mixer(path: str, mixer: MixerSpec) -> None:
    """Refuse uneven groups of heads, empty ranges, a norm of groups, and a wrong order."""
    heads = mixer.num_heads
    check_order(mixer.scan_backends, f"{path}.scan_backends", SCAN_BACKENDS)
    check_divides(f"{path}.num_key_heads", mixer.key_heads, f"{path}.num_heads", heads)
    for key in ("decay_range", "step_range"):
        low, high = getattr(mixer, key)
        if low >= high:
            problem = f"[{low:g}, {high:g}] is empty"
            raise RecipeError(f"{path}.{key}", problem, "list the lower number first")
    if mixer.norm is not None:
        _check_norm(f"{path}.norm", mixer.norm)
        if mixer.norm.center and mixer.groups_norm:
            problem = f"true, but {mixer.class_name} divides each group by its root mean square"
            raise RecipeError(f"{path}.norm.center", problem, f"set {path}.norm.center=false")


def _check_mtp(shape: DecoderSpec) -> None:
    """Refuse multi-token prediction if an embedding is more than one row per token."""
    if shape.mtp is None:
        return
    if shape.pattern is not None:
        problem = "multi-token prediction is not supported with a pattern of layers"
        raise RecipeError("model.mtp", problem, "set model.mtp=null or model.pattern=null")
    if shape.z_loss:
        problem = "a z-loss is not supported with multi-token prediction"
        raise RecipeError("model.z_loss", problem, "set model.z_loss=0.0 or model.mtp=null")
    for key, value in (
        ("positions.num_positions", shape.positions.num_positions),
        ("embedding_norm", shape.embedding_norm),
    ):
        if value is not None:
            problem = f"multi-token prediction does not support model.{key}"
            raise RecipeError("model.mtp", problem, f"set model.mtp=null, or change {key}")


def _check_latent(attention: AttentionSpec) -> None:
    """Refuse latent attention with shared keys, fully rotated heads or wider values."""
    if attention.key_value_rank is None:
        return
    heads, width = attention.num_heads, attention.head_dim
    if attention.num_kv_heads != heads:
        problem = f"{attention.num_kv_heads}, but latent attention needs {heads}, one per head"
        raise RecipeError("model.attention.num_kv_heads", problem, f"set {heads}")
    # Each head keeps channels without a position.
    check_at_most(
        "model.attention.rotary_dim", attention.rotary_dim, "head_dim - 1 =", width - 1
    )
    check_at_most("model.attention.value_dim", attention.value_width, "head_dim", width)


def _check_gate(path: str, mlp: FeedForwardSpec) -> None:
    """Refuse keys of a clamped SwiGLU without its gate."""
    if not mlp.is_clamped or (mlp.gated and mlp.activation == "silu"):
        return
    plain = {"swiglu_limit": None, "swiglu_alpha": 1.0, "linear_offset": 0.0}
    key = next(key for key, value in plain.items() if getattr(mlp, key) != value)
    problem = f"{getattr(mlp, key):g} has no effect without a SwiGLU"
    fix = f"set {path}.gated=true and {path}.activation=silu"
    raise RecipeError(f"{path}.{key}", problem, fix)


def _check_experts(mlp: FeedForwardSpec) -> None:
    """Refuse a ``top_k`` above ``num_experts``, a gate of nothing, and invalid groups."""
    experts, groups, top_groups = mlp.num_experts or 0, mlp.num_groups, mlp.top_groups
    if mlp.num_experts is not None:
        check_at_most("model.mlp.top_k", mlp.top_k or 1, "model.mlp.num_experts", experts)
    if mlp.shared_gate and mlp.shared_ffn_dim is None:
        problem = "true, but there is no shared expert"
        fix = "set model.mlp.shared_ffn_dim, or model.mlp.shared_gate=false"
        raise RecipeError("model.mlp.shared_gate", problem, fix)
    if groups == top_groups == 1:
        return
    sizes = [n for n in list_divisors(experts) if experts >= 2 * n]
    if groups not in sizes:
        problem = f"{experts} experts do not form {groups} equal groups of two or more"
        fix = f"valid values: {', '.join(map(str, sizes)) or 1}"
        raise RecipeError("model.mlp.num_groups", problem, fix)
    least = -(-(mlp.top_k or 1) * groups // experts)
    if not least <= top_groups <= groups:
        problem = f"{top_groups} of {groups} groups have too few experts for top_k {mlp.top_k}"
        raise RecipeError("model.mlp.top_groups", problem, f"use {least} to {groups}")


def _check_norms(spec: DecoderSpec) -> None:
    """Refuse a bias in a norm without ``center``."""
    attention = spec.attention
    for path, norm in (
        ("model.norm", spec.norm),
        ("model.embedding_norm", spec.embedding_norm),
        ("model.attention.qk_norm", attention.qk_norm),
        ("model.attention.latent_norm", attention.latent_norm),
    ):
        if norm is not None:
            _check_norm(path, norm)


def _check_norm(path: str, norm: NormSpec) -> None:
    if norm.bias and not norm.center:
        problem = "true, but a norm without center has no bias"
        fix = f"set {path}.bias=false, or {path}.center=true for LayerNorm"
        raise RecipeError(f"{path}.bias", problem, fix)


def _check_positions(spec: DecoderSpec) -> None:
    """Refuse rotary positions of odd width, for absent windows, or without a slow part."""
    attention, positions, scaling = spec.attention, spec.positions, spec.positions.scaling
    is_latent = attention.key_value_rank is not None
    key = "rotary_dim" if is_latent else "head_dim"
    width = positions.rotary_width(getattr(attention, key))
    if is_latent and positions.rotary_fraction < 1:
        problem = f"{positions.rotary_fraction:g}, but latent attention rotates rotary_dim"
        fix = "set model.positions.rotary_fraction=1.0 and model.attention.rotary_dim"
        raise RecipeError("model.positions.rotary_fraction", problem, fix)
    if positions.base is not None and width % 2:
        problem = f"{width} is odd, but rotary positions rotate channels in pairs"
        raise RecipeError(f"model.attention.{key}", problem, f"use {width - 1} or {width + 1}")
    if positions.local_base is not None and set(attention.windows) == {"full"}:
        problem = f"{positions.local_base:g} needs a layer with a window, but all are full"
        fix = "set model.attention.windows=[4096, full], or remove this key"
        raise RecipeError("model.positions.local_base", problem, fix)
    if scaling is None or scaling.low_frequency_factor is None:
        return
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    if high is not None and low >= high:
        path = "model.positions.scaling.low_frequency_factor"
        raise RecipeError(path, f"{low} is not below high_frequency_factor {high}", "lower it")
