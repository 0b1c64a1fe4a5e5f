"""Rules of the guards: what an engine cannot judge, and faults that would never strike."""

from typing import TYPE_CHECKING

from components.errors import RecipeError

if TYPE_CHECKING:
    from components.spec.recipe import Recipe


def check_guard(recipe: "Recipe") -> None:
    """Hold what guards and rehearsals can do.

    Raises:
        RecipeError: a norm that no one knows in time, or a fault of no rank or no step.
    """
    guard, degrees = recipe.guard, recipe.parallelism
    if (
        not isinstance(guard.gradient_norm_spike, str)
        and degrees.engine == "deepspeed"
        and degrees.zero > 0
    ):
        raise RecipeError(
            "guard.gradient_norm_spike",
            f"DeepSpeed at zero={degrees.zero} tells the norm only after the update",
            "set guard.gradient_norm_spike=none, parallelism.zero=0 or parallelism.engine=mesh",
        )
    # Of a copy: who goes through layouts gives the recipe other degrees yet.
    steps = recipe.model_copy().derived.steps if guard.inject else 0
    limits = {"rank": recipe.cluster.ranks - 1, "step": steps}
    for number, fault in enumerate(guard.inject):
        for key, limit in limits.items():
            if (value := getattr(fault, key)) > limit:
                raise RecipeError(
                    f"guard.inject.{number}.{key}",
                    f"{value}, but the last {key} is {limit}",
                    f"choose one up to {limit}",
                )
