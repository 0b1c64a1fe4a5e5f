"""Rules of a parametrization: what has no rule for its width, its depth or its updates."""

from collections.abc import Iterator
from math import gcd
from typing import NamedTuple

from components.config.recipe import Recipe
from components.errors import RecipeError


class Bar(NamedTuple):
    """What cannot go with a parametrization: whether it is there, why, and the way out."""

    key: str
    stands: bool
    problem: str
    remedy: str


def check_parametrization(recipe: Recipe) -> None:
    """Raise a RecipeError for the first thing whose scale with the width nobody has stated."""
    if recipe.shape.parametrization is None:
        return
    for bar in _bars(recipe):
        if bar.stands:
            without = "or model.parametrization=null"
            raise RecipeError(bar.key, bar.problem, f"set {bar.remedy}, {without}")


def _bars(recipe: Recipe) -> Iterator[Bar]:
    shape, optimizer = recipe.shape, recipe.optimizer
    first = shape.initialization
    base = shape.parametrization
    assert base is not None, "the caller asked"
    heads, groups = shape.attention.num_heads, shape.attention.num_kv_heads
    multiple = base_multiple(shape.dim, heads, groups)
    deep = base.base_layers is not None
    yield Bar(
        "model.parametrization.base_dim",
        base.base_dim % multiple > 0,
        f"{base.base_dim} of {shape.dim:,} would have "
        f"{heads * base.base_dim / shape.dim:g} heads and "
        f"{groups * base.base_dim / shape.dim:g} of keys: widths grow by whole heads",
        f"model.parametrization.base_dim to a multiple of {multiple}",
    )
    yield Bar(
        "model.initialization.std",
        first.std == "fan_in",
        "fan_in follows each map's own sizes, and a parametrization a deviation of the base",
        "model.initialization.std=0.02",
    )
    yield Bar(
        "model.initialization.residual",
        deep and first.residual == "scaled",
        "scaled follows the depth, for which branches have a multiplier already",
        "model.initialization.residual=plain",
    )
    yield Bar(
        "model.norm_placement",
        deep and shape.norm_placement != "before",
        f"{shape.norm_placement}, but depth's rule is for branches that are normed before",
        "model.norm_placement=before",
    )
    yield Bar(
        "model.embedding_scale",
        shape.embedding_scale != "none",
        f"{shape.embedding_scale} grows with the width, for which embeddings stay as they are",
        "model.embedding_scale=none and parametrization.embedding_multiplier",
    )
    yield Bar(
        "model.attention.key_value_rank",
        shape.attention.key_value_rank is not None,
        "latent vectors have a width of their own, of which no base is declared",
        "an attention without",
    )
    yield Bar(
        "model.mtp",
        shape.mtp is not None,
        "a layer behind the last one has no place in the width's and the depth's rules",
        "model.mtp=null",
    )
    # Adam with decoupled decay is what the rules are stated for, one slow mean more or not.
    decoupled = "decay_order" in optimizer or "beta3" in optimizer
    yield Bar(
        "optimizer",
        not decoupled or "newton_schulz_steps" in optimizer,
        "its rates by width are those of AdamW, and this is another rule of updates",
        "optimizer=adamw",
    )


def base_multiple(dim: int, heads: int, groups: int) -> int:
    """Return what a base's width is a multiple of, if it has whole heads in proportion."""
    return dim // gcd(dim, heads, groups)
