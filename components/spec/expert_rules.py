"""Rules of the expert axis: what its ranks can divide, and beside which axes it stands."""

from typing import TYPE_CHECKING

from components.errors import RecipeError

if TYPE_CHECKING:
    from components.spec.recipe import Recipe


def check_experts(recipe: "Recipe") -> None:
    """Refuse experts that the ranks cannot hold in equal parts.

    Raises:
        RecipeError: the first rule that is broken.
    """
    experts = recipe.shape.mlp.num_experts
    if experts is None:
        _check_dense(recipe)
        return
    degrees = recipe.parallelism
    if experts % degrees.expert:
        fitting = [n for n in range(1, experts + 1) if experts % n == 0]
        raise RecipeError(
            "parallelism.expert",
            f"{degrees.expert} ranks cannot share model.mlp.num_experts {experts} evenly",
            f"values that do: {', '.join(map(str, fitting))}",
        )
    if degrees.tensor > 1:
        raise RecipeError(
            "parallelism.tensor",
            f"{degrees.tensor}: experts are not split over this axis, here as in Optimus",
            "set parallelism.tensor=1, and parallelism.expert for experts that do not fit",
        )
    if degrees.zero == 3:
        _check_fully_sharded(recipe, experts)


def _check_dense(recipe: "Recipe") -> None:
    if (degree := recipe.parallelism.expert) > 1:
        raise RecipeError(
            "parallelism.expert",
            f"{degree} ranks for experts, but the model has none",
            "set parallelism.expert=1; parallelism.data is the axis of dense models",
        )
    if (parts := recipe.parallelism.expert_overlap) > 1:
        raise RecipeError(
            "parallelism.expert_overlap",
            f"{parts} parts of what goes to experts, but the model has none",
            "set parallelism.expert_overlap=1",
        )


def _check_fully_sharded(recipe: "Recipe", experts: int) -> None:
    """ZeRO 3 deals whole experts to the ranks that share a copy."""
    degrees = recipe.parallelism
    if degrees.expert > 1:
        raise RecipeError(
            "parallelism.zero",
            f"3 would gather what {degrees.expert} expert ranks divide already",
            "set parallelism.zero=1 or 2, or parallelism.expert=1",
        )
    pieces = degrees.data_shard * degrees.context
    if degrees.engine == "mesh" and experts % pieces:
        raise RecipeError(
            "parallelism.zero",
            f"3 deals whole experts, and {pieces} ranks do not divide {experts} of them",
            f"set parallelism.data_shard to a divisor of {experts}, or parallelism.zero=1",
        )
