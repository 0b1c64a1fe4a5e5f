"""The section ``tracking``: to whom the measurements of a run are sent once someone asks.

No rank reads it: ``action=sync`` does, on a machine with a network.
"""

from typing import Annotated, Literal

from pydantic import Field

from components.spec.section import Section

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
