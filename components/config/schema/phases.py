"""Schema of ``phases``: from a point of the token budget on, other values of a few keys."""

import math
from fractions import Fraction as Exact
from typing import Annotated, Literal

from pydantic import Field

from components.config.schema import types
from components.config.schema.types import Count, KeyGroup, Node, Section

ABSENT = Field(exclude_if=lambda one: one is None)
EMPTY = Field(exclude_if=lambda one: not types.thaw(one))


Packing = Literal["concatenate", "best_fit"]


class PhaseStart(Section):
    """A point of the token budget: one of the two says which."""

    from_tokens: Annotated[Count | None, ABSENT] = None
    from_fraction: Annotated[types.Fraction | None, ABSENT] = None

    def first_token(self, total_tokens: int) -> int:
        """Return the tokens before it."""
        if self.from_tokens is not None:
            return self.from_tokens
        return math.ceil(Exact(repr(self.from_fraction)) * total_tokens)


class PhaseBudget(Section):
    """Other helpings of the same budget."""

    sequence_length: Annotated[Count | None, ABSENT] = None
    global_batch_tokens: Annotated[Count | None, ABSENT] = None


class PhaseModel(Section):
    """Other positions of the same weights."""

    positions: Annotated[Node, EMPTY] = Field(default_factory=dict)


class PhaseData(Section):
    """Another way to cut the same sources."""

    document_mask: Annotated[bool | None, ABSENT] = None
    packing: Annotated[Packing | None, ABSENT] = None


class RunPhase(PhaseStart):
    """The keys that differ from the recipe's own, each where it stands there.

    A phase begins with the first step that begins at its token or after it, and takes one step
    at least. It may have another layout of the same ranks, so a new process takes it up from
    the checkpoint that the phase before ends with; with ``fresh_optimizer`` from moments of 0.
    """

    keys_group = KeyGroup.MATHEMATICS

    budget: Annotated[PhaseBudget, EMPTY] = PhaseBudget()
    model: Annotated[PhaseModel, EMPTY] = PhaseModel()
    data: Annotated[PhaseData, EMPTY] = PhaseData()
    precision: Annotated[Node, EMPTY] = Field(default_factory=dict)
    parallelism: Annotated[Node, EMPTY, KeyGroup.LAYOUT] = Field(default_factory=dict)
    fresh_optimizer: Annotated[bool, EMPTY] = False
