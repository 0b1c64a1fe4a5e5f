"""Rules of a model: numbers that contradict each other, and parts that cannot go together."""

from components.attention_backends import check_order
from components.attention_windows import KEY as WINDOWS
from components.config.model_spec.attention import AttentionSpec
from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.feed_forward import FeedForwardSpec
from components.config.suggestions import divisors
from components.errors import RecipeError


def check_shape(shape: DecoderSpec) -> None:
    """Raise a RecipeError for settings of a model that contradict each other."""
    _check_norms(shape)
    _check_positions(shape)
    check_order(shape.attention.backends)
    _check_padding_row(shape)
    heads, groups = shape.attention.num_heads, shape.attention.num_kv_heads
    if heads % groups:
        legal = ", ".join(map(str, divisors(heads)))
        problem = f"{groups} does not divide num_heads {heads}"
        raise RecipeError("model.attention.num_kv_heads", problem, f"values that do: {legal}")
    _check_latent(shape.attention)
    if shape.padded_vocab_size < shape.vocab_size:
        problem = f"{shape.padded_vocab_size:,} is below vocab_size {shape.vocab_size:,}"
        remedy = f"give at least {shape.vocab_size:,}"
        raise RecipeError("model.padded_vocab_size", problem, remedy)
    experts, top_k = shape.mlp.num_experts, shape.mlp.top_k
    if experts is not None and (top_k is None or top_k > experts):
        problem = f"a token cannot go to {top_k} of {experts} experts"
        raise RecipeError("model.mlp.top_k", problem, f"give a number from 1 to {experts}")
    _check_groups(shape.mlp)
    _check_leading(shape)
    _check_mtp(shape)


def _check_mtp(shape: DecoderSpec) -> None:
    """Refuse to embed further tokens where an embedding is more than a row a token."""
    if shape.mtp is None:
        return
    if shape.z_loss:
        problem = "a z-loss is of the next token's logits alone"
        raise RecipeError("model.z_loss", problem, "set model.z_loss=0.0 or model.mtp=null")
    for key, there in (
        ("positions.num_positions", shape.positions.num_positions),
        ("embedding_norm", shape.embedding_norm),
    ):
        if there is not None:
            problem = f"embeddings of further tokens go without model.{key}"
            raise RecipeError("model.mtp", problem, f"set model.mtp=null, or another {key}")


def _check_leading(shape: DecoderSpec) -> None:
    """Refuse dense layers at the begin of a model that has none with experts after them."""
    if shape.dense_mlp is None:
        return
    if shape.mlp.num_experts is None:
        problem = "first layers without experts, but the others have none either"
        raise RecipeError("model.dense_mlp", problem, "set model.dense_mlp=null")
    if shape.leading_layers >= shape.num_layers:
        problem = f"{shape.leading_layers} of {shape.num_layers} layers leave none with experts"
        remedy = f"give at most {shape.num_layers - 1}, or set model.dense_mlp=null"
        raise RecipeError("model.num_dense_layers", problem, remedy)


def _check_latent(attention: AttentionSpec) -> None:
    """Refuse latent attention whose heads share keys, rotate whole or have wider values."""
    if attention.key_value_rank is None:
        return
    heads, width = attention.num_heads, attention.head_dim
    if attention.num_kv_heads != heads:
        problem = f"{attention.num_kv_heads}, but each of {heads} heads has keys of its own"
        raise RecipeError("model.attention.num_kv_heads", problem, f"set {heads}")
    if attention.rotary_dim >= width:
        problem = f"{attention.rotary_dim} leaves nothing of head_dim {width} that stays"
        raise RecipeError("model.attention.rotary_dim", problem, f"give less than {width}")
    if attention.values > width:
        problem = f"{attention.values} is more than head_dim {width}"
        raise RecipeError("model.attention.value_dim", problem, f"give {width} or less")


def _check_groups(mlp: FeedForwardSpec) -> None:
    """Refuse groups that are none, or too small to have a token's experts."""
    experts, groups, top = mlp.num_experts or 0, mlp.num_groups, mlp.top_groups
    if groups == top == 1:
        return
    sizes = [n for n in divisors(experts) if experts >= 2 * n]
    if groups not in sizes:
        problem = f"{experts} experts cannot be in {groups} equal groups of two or more"
        remedy = f"values that do: {', '.join(map(str, sizes)) or 1}"
        raise RecipeError("model.mlp.num_groups", problem, remedy)
    least = -(-(mlp.top_k or 1) * groups // experts)
    if not least <= top <= groups:
        problem = f"{top} of {groups} groups cannot give a token its {mlp.top_k} experts"
        remedy = f"give a number from {least} to {groups}"
        raise RecipeError("model.mlp.top_groups", problem, remedy)


def check_further(depth: int, length: int) -> None:
    """Raise a RecipeError where not even the first position has a target of each depth."""
    if depth >= length:
        problem = f"{depth}, but sequences of {length} tokens have no target so far"
        raise RecipeError("model.mtp.depth", problem, f"give at most {length - 1}: depth=1")


def _check_norms(spec: DecoderSpec) -> None:
    """Refuse a bias in a norm that does not center."""
    attention = spec.attention
    for path, norm in (
        ("norm", spec.norm),
        ("embedding_norm", spec.embedding_norm),
        ("attention.qk_norm", attention.qk_norm),
        ("attention.latent_norm", attention.latent_norm),
    ):
        if norm is not None and norm.bias and not norm.center:
            problem = "true, but a norm that does not center has no bias"
            remedy = f"set model.{path}.bias=false, or model.{path}.center=true for LayerNorm"
            raise RecipeError(f"model.{path}.bias", problem, remedy)


def _check_positions(spec: DecoderSpec) -> None:
    """Refuse rotations of odd widths, of windows that no layer has, or without a slow part."""
    attention, positions = spec.attention, spec.positions
    latent = attention.key_value_rank is not None
    key, width = "head_dim", attention.head_dim
    if latent:
        key, width = "rotary_dim", attention.rotary_dim
    if positions.base is not None and width % 2:
        problem = f"{width} is odd, but rotary positions turn channels in pairs"
        remedy = f"use {width - 1} or {width + 1}"
        raise RecipeError(f"model.attention.{key}", problem, remedy)
    if positions.local_base is not None and set(attention.windows) == {"full"}:
        problem = f"{positions.local_base:g} is for layers with a window, and there is none"
        remedy = f"set {WINDOWS}=[4096, full], or leave it out"
        raise RecipeError("model.positions.local_base", problem, remedy)
    scaling = positions.scaling
    if scaling is None or scaling.low_frequency_factor is None:
        return
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    if high is not None and low >= high:
        remedy = "give fewer turns than high_frequency_factor"
        path = "model.positions.scaling.low_frequency_factor"
        raise RecipeError(path, f"{low} is not below {high}", remedy)


def _check_padding_row(spec: DecoderSpec) -> None:
    """Refuse a padding row that the embedding does not have."""
    row, rows = spec.initialization.padding_row, spec.padded_vocab_size
    if row is not None and not 0 <= row < rows:
        problem = f"there is no row {row} among {rows:,}"
        remedy = f"use 0 to {rows - 1:,}, or null for none"
        raise RecipeError("model.initialization.padding_row", problem, remedy)
