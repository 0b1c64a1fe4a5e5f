"""Rules of attention: which of the recipe's backends will serve on its device."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from components.attention_backends import AttentionCase, Backend, serving
from components.config.targets import read_signature

if TYPE_CHECKING:
    from components.config.schema.recipe import Recipe


def attention_backends(recipe: "Recipe") -> tuple[Backend, ...]:
    """Return the backends that serve, the one that is taken first.

    On a CPU torch chooses, and of ``cluster.device=auto`` nobody knows here: none.

    Raises:
        RecipeError: none of the order has a kernel for this recipe.
    """
    attention = recipe.model["attention"]
    order = attention.get("backends", ())
    return serving(order, _case(recipe)) if order else ()


def attention_passes(recipe: "Recipe") -> int:
    """Count how often the taken backend goes over the scores: flex drops weights in two."""
    drops = recipe.model["attention"].get("dropout", 0) > 0
    return 2 if drops and attention_backends(recipe)[:1] == ("flex",) else 1


def _case(recipe: "Recipe") -> AttentionCase:
    compute, shape, degrees = recipe.precision.compute, recipe.shape, recipe.parallelism
    heads = shape.attention.num_heads / degrees.tensor
    keys = max(shape.attention.num_kv_heads / degrees.tensor, 1)
    mask: Literal["causal", "offset", "structured"] = "structured"
    if not recipe.data.document_mask and not _has_slopes(recipe.model["positions"]):
        mask = "causal" if degrees.context == 1 else "offset"
    return AttentionCase(
        device=recipe.cluster.device,
        dtype="bfloat16" if compute in {"auto", "float8"} else compute,
        head_dim=shape.attention.head_dim,
        grouped=heads != keys,
        dropout=recipe.model["attention"].get("dropout", 0) > 0,
        mask=mask,
    )


def _has_slopes(positions: Mapping[str, object]) -> bool:
    """Whether the class of the positions computes slopes; by its methods, not its name."""
    return "slopes" in read_signature(positions["_target_"], "model.positions._target_").marks
