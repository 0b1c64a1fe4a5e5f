"""Rules of the model: settings that its parts can compute, and what expert ranks can divide.

Keys, not class names, carry the rules: a new part with the same keys keeps them too.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from components.errors import RecipeError

if TYPE_CHECKING:
    from components.config.schema.recipe import Recipe

NORMS = ("norm", "embedding_norm", "attention.qk_norm")


def check_model(model: Mapping[str, Any]) -> None:
    """Hold every rule of the section.

    Raises:
        RecipeError: a norm with a bias that does not center, heads of an odd width that are
            rotated in pairs, attention weights that no kernel drops, or a padding row that the
            embedding has not.
    """
    for path in NORMS:
        norm = _at(model, path)
        if norm.get("bias", False) and not norm.get("center", True):
            problem = "true, but a norm that does not center has no bias"
            remedy = f"set model.{path}.bias=false, or model.{path}.center=true for LayerNorm"
            raise RecipeError(f"model.{path}.bias", problem, remedy)
    _check_attention(model)
    row, rows = _at(model, "initialization").get("padding_row"), model["padded_vocab_size"]
    if row is not None and not 0 <= row < rows:
        problem = f"there is no row {row} among {rows:,}"
        remedy = f"use 0 to {rows - 1:,}, or null for none"
        raise RecipeError("model.initialization.padding_row", problem, remedy)


def _at(model: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Find a part that names a class: only the arguments of such are checked before."""
    here: Any = model
    for step in path.split("."):
        here = here.get(step) if isinstance(here, Mapping) else None
    return here if isinstance(here, Mapping) and "_target_" in here else {}


def _check_attention(model: Mapping[str, Any]) -> None:
    attention = _at(model, "attention")
    width, dropped = attention.get("head_dim", 0), attention.get("dropout", 0.0)
    if _at(model, "positions").get("base") is not None and width % 2:
        problem = f"{width} is odd, but rotary positions turn channels in pairs"
        remedy = f"use {width - 1} or {width + 1}"
        raise RecipeError("model.attention.head_dim", problem, remedy)
    if attention.get("backend") == "flex" and dropped > 0:
        raise RecipeError(
            "model.attention.backend",
            f"flex cannot drop attention weights, but model.attention.dropout is {dropped}",
            "use auto or sdpa, or model.attention.dropout=0.0",
        )


def check_experts(recipe: "Recipe") -> None:
    """Refuse experts that the ranks cannot hold in equal parts.

    Raises:
        RecipeError: the first rule that is broken.
    """
    experts = recipe.shape.mlp.num_experts
    if experts is None:
        if (degree := recipe.parallelism.expert) > 1:
            problem = f"{degree} ranks for experts, but the model has none"
            remedy = "set parallelism.expert=1; parallelism.data is the axis of dense models"
            raise RecipeError("parallelism.expert", problem, remedy)
        if (parts := recipe.parallelism.expert_overlap) > 1:
            problem = f"{parts} parts of what goes to experts, but the model has none"
            remedy = "set parallelism.expert_overlap=1"
            raise RecipeError("parallelism.expert_overlap", problem, remedy)
        return
    degrees = recipe.parallelism
    if experts % degrees.expert:
        fitting = [n for n in range(1, experts + 1) if experts % n == 0]
        problem = f"{degrees.expert} ranks cannot share model.mlp.num_experts {experts} evenly"
        remedy = f"values that do: {', '.join(map(str, fitting))}"
        raise RecipeError("parallelism.expert", problem, remedy)
    if degrees.tensor > 1:
        problem = f"{degrees.tensor}: experts are not split over this axis, here as in Optimus"
        remedy = "set parallelism.tensor=1, and parallelism.expert for experts that do not fit"
        raise RecipeError("parallelism.tensor", problem, remedy)
    if degrees.zero == 3:
        _check_fully_sharded(recipe, experts)


def _check_fully_sharded(recipe: "Recipe", experts: int) -> None:
    """ZeRO 3 deals whole experts to the ranks that share a copy."""
    degrees = recipe.parallelism
    if degrees.expert > 1:
        problem = f"3 would gather what {degrees.expert} expert ranks divide already"
        remedy = "set parallelism.zero=1 or 2, or parallelism.expert=1"
        raise RecipeError("parallelism.zero", problem, remedy)
    pieces = degrees.data_shard * degrees.context
    if degrees.engine == "mesh" and experts % pieces:
        problem = f"3 deals whole experts, and {pieces} ranks do not divide {experts} of them"
        remedy = f"set parallelism.data_shard to a divisor of {experts}, or parallelism.zero=1"
        raise RecipeError("parallelism.zero", problem, remedy)
