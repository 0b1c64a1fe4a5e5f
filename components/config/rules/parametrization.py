"""Rules of a parametrization: settings without a rule for width, depth or updates."""

from math import gcd

from components.config.limits import check_multiple
from components.config.model_spec.parametrization import MuPSpec
from components.config.recipe import Recipe
from components.errors import RecipeError


def check_parametrization(recipe: Recipe) -> None:
    """Raise a RecipeError for the first setting that the parametrization cannot scale."""
    shape, optimizer = recipe.decoder_spec, recipe.optimizer
    first, base, attention = shape.initialization, shape.parametrization, shape.attention
    if not isinstance(base, MuPSpec):
        return
    unit = base_multiple(shape.dim, attention.num_heads, attention.num_kv_heads)
    check_multiple("model.parametrization.base_dim", base.base_dim, "the head unit,", unit)
    by_depth = base.base_layers is not None
    # The rules hold for Adam with decoupled decay, with or without a second, slow mean.
    is_adamw = optimizer.keys() & {"decay_order", "beta3"} and "momentum" not in optimizer
    rules = {
        "model.initialization.std=0.02": (first.std == "fan_in", "one std at the base width"),
        "model.initialization.residual=plain": (
            by_depth and first.residual == "scaled",
            "branches without a second depth factor",
        ),
        "model.norm_placement=before": (
            by_depth and shape.norm_placement != "before",
            "norms before branches",
        ),
        "model.embedding_scale=none": (shape.embedding_scale != "none", "plain embeddings"),
        "model.attention.key_value_rank=null": (
            attention.key_value_rank is not None,
            "attention without latent vectors",
        ),
        "model.pattern=null": (shape.pattern is not None, "attention and an MLP in each layer"),
        "model.mtp=null": (shape.mtp is not None, "models without multi-token prediction"),
        "optimizer=adamw": (not is_adamw, "the updates of AdamW"),
    }
    for setting, (is_broken, rule) in rules.items():
        if is_broken:
            problem = f"model.parametrization supports only {rule}"
            fix = f"set {setting}, or model.parametrization=null"
            raise RecipeError(setting.partition("=")[0], problem, fix)


def base_multiple(dim: int, heads: int, groups: int) -> int:
    """Return the unit of the base width: its multiples have whole heads in proportion."""
    return dim // gcd(dim, heads, groups)
