"""Rules of attention: which of the recipe's backends will serve on its device."""

from typing import Literal

from components.attention_backends import AttentionCase, Backend, serving
from components.config.recipe import Recipe


def attention_backends(recipe: Recipe) -> dict[bool, tuple[Backend, ...]]:
    """Return the backends that serve layers without and with a window, best first.

    A window that is as long as the sequence is none; a kind that no layer is of is left out.
    On a CPU torch chooses, and of ``cluster.device=auto`` nobody knows here: none.

    Raises:
        RecipeError: none of the order has a kernel for this recipe.
    """
    order = recipe.shape.attention.backends
    return {
        narrow: serving(order, _case(recipe, narrow=narrow)) if order else ()
        for narrow in sorted(set(_are_narrow(recipe)))
    }


def attention_passes(recipe: Recipe) -> float:
    """Average over layers how often their backend goes over the scores: flex drops in two."""
    if not recipe.shape.attention.dropout:
        return 1
    kernels, layers = attention_backends(recipe), _are_narrow(recipe)
    return 1 + sum(kernels[narrow][:1] == ("flex",) for narrow in layers) / len(layers)


def _are_narrow(recipe: Recipe) -> list[bool]:
    length = recipe.budget.sequence_length
    return [keys < length for keys in recipe.shape.visible_keys(length)]


def _case(recipe: Recipe, *, narrow: bool) -> AttentionCase:
    compute, shape, degrees = recipe.precision.compute, recipe.shape, recipe.parallelism
    heads = shape.attention.num_heads / degrees.tensor
    keys = max(shape.attention.num_kv_heads / degrees.tensor, 1)
    sloped = shape.positions.has_slopes
    mask: Literal["causal", "offset", "structured"] = "structured"
    if not (recipe.data.document_mask or sloped or narrow):
        mask = "causal" if degrees.context == 1 else "offset"
    return AttentionCase(
        device=recipe.cluster.device,
        dtype="bfloat16" if compute in {"auto", "float8"} else compute,
        head_dim=shape.attention.head_dim,
        grouped=heads != keys,
        dropout=recipe.shape.attention.dropout > 0,
        mask=mask,
    )
