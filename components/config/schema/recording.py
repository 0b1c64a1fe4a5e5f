"""Schema of ``profiler`` and ``tracking``: what of a run is recorded, and to whom it is sent.

No rank reads ``tracking``: ``action=sync`` does, on a machine with a network.
"""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from components.config.schema.types import Count, Section
from components.errors import RecipeError

if TYPE_CHECKING:
    from components.config.schema.recipe import Recipe

Rank = Annotated[int, Field(ge=0)]


class Profiler(Section):
    """Profile ``steps`` steps from ``first_step`` on, counted from 1, on these ``ranks``.

    No steps: no profile. With ``stacks`` the trace says which line of Python asked for what,
    which takes longer.
    """

    steps: Annotated[int, Field(ge=0)]
    first_step: Count
    ranks: Annotated[tuple[Rank, ...], Field(strict=False, min_length=1)]
    stacks: bool


def check_profiler(recipe: "Recipe") -> None:
    """Hold a profile to the steps and ranks that there are.

    Raises:
        RecipeError: a step or a rank beyond the last.
    """
    profiler = recipe.profiler
    if not profiler.steps:
        return
    # Of a copy: who goes through layouts gives the recipe other degrees yet.
    steps = recipe.model_copy().derived.steps
    last = profiler.first_step + profiler.steps - 1
    if last > steps:
        raise RecipeError(
            "profiler.first_step",
            f"{profiler.first_step} and profiler.steps {profiler.steps} end with step {last}, "
            f"but the last step is {steps}",
            f"set profiler.first_step={max(1, steps - profiler.steps + 1)} or less"
            if profiler.steps <= steps
            else f"set profiler.first_step=1 profiler.steps={steps} or less",
        )
    ranks = recipe.cluster.ranks
    if max(profiler.ranks) >= ranks:
        raise RecipeError(
            "profiler.ranks",
            f"there is no rank {max(profiler.ranks)}: the last rank is {ranks - 1}",
            f"choose ranks up to {ranks - 1}",
        )


# What W&B accepts (wandb.Settings, fields `project` and `run_tags`).
Project = Annotated[str, Field(pattern=r"^[^/\\#?%:\x00-\x1f]{1,128}$")]
Tag = Annotated[str, Field(min_length=1, max_length=64)]
Name = Annotated[str, Field(min_length=1)]


class Wandb(Section):
    """A project of Weights & Biases.

    ``entity`` is whose project it is, null the user's own. ``tags`` come beside those that say
    recipe, scale, cluster, fingerprint and commit.
    """

    project: Project
    entity: Name | None
    tags: Annotated[tuple[Tag, ...], Field(strict=False)]


class Mlflow(Section):
    """An experiment of MLflow, made on the server if it is not there."""

    experiment: Name


class Tracking(Section):
    """The trackers that a run is sent to; files of the run folder are written in any case."""

    wandb: Wandb | Literal["none"]
    mlflow: Mlflow | Literal["none"]

    @property
    def is_empty(self) -> bool:
        return self.wandb == self.mlflow == "none"
