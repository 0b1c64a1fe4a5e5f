"""Schema of ``from``: the checkpoint of another run that a run begins with."""

from typing import Annotated, Literal

from pydantic import Field

from components.config.schema.phases import ABSENT, EMPTY
from components.config.schema.sections import Stem
from components.config.schema.types import Count, FrozenMapping, KeyGroup, Place, Section

Takes = Literal["optimizer", "weights"]


class Parent(Section):
    """The run that a checkpoint comes from, after how many tokens, and what is taken of it.

    ``run`` is the folder where it lies, ``recipe`` the name of what it must be a run of; one of
    them is needed, to train the folder. ``with: optimizer`` goes on: weights, moments, data and
    clock, all lengths of the budget counted from the parent's first token. ``with: weights``
    begins anew with these weights. The parent's ``fingerprint`` is settled, and of ``merged``
    checkpoints the part of each, by its tokens.
    """

    keys_group = KeyGroup.MATHEMATICS

    run: Annotated[Place | None, KeyGroup.RECORD, ABSENT] = None
    recipe: Annotated[Stem | None, KeyGroup.RECORD, ABSENT] = None
    at_tokens: Annotated[Count | None, ABSENT] = None
    takes: Annotated[Takes, Field(alias="with")]
    fingerprint: Annotated[str | None, ABSENT] = None
    merged: Annotated[FrozenMapping[float], EMPTY] = Field(default_factory=dict)

    @property
    def goes_on(self) -> bool:
        """Whether the parent's clock goes on, and not its weights alone."""
        return self.takes == "optimizer"
