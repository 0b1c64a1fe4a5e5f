"""Schema of ``phases``: different values of a few keys from a point of the token budget on."""

import math
from fractions import Fraction as Exact
from typing import Annotated, Literal

from pydantic import Field

from components.config.schema import types
from components.config.schema.types import ComponentNode, Count, KeyGroup, Section

ABSENT = Field(exclude_if=lambda value: value is None)
EMPTY = Field(exclude_if=lambda value: not types.to_plain(value))


Packing = Literal["concatenate", "best_fit"]


class PhaseStart(Section):
    """Start of a phase in the token budget: exactly one of the two fields is set."""

    from_tokens: Annotated[Count | None, ABSENT] = None
    from_fraction: Annotated[types.Fraction | None, ABSENT] = None

    def first_token(self, total_tokens: int) -> int:
        """Return the number of tokens before the phase."""
        if self.from_tokens is not None:
            return self.from_tokens
        return math.ceil(Exact(repr(self.from_fraction)) * total_tokens)


class PhaseBudget(Section):
    """Sequence length and batch size of a phase."""

    sequence_length: Annotated[Count | None, ABSENT] = None
    global_batch_tokens: Annotated[Count | None, ABSENT] = None


class PhaseModel(Section):
    """Position encoding of a phase; the weights stay the same."""

    positions: Annotated[ComponentNode, EMPTY] = Field(default_factory=dict)


class PhaseData(Section):
    """Document mask and packing of a phase; the sources stay the same."""

    document_mask: Annotated[bool | None, ABSENT] = None
    packing: Annotated[Packing | None, ABSENT] = None


class RunPhase(PhaseStart):
    """Keys of a phase that differ from the recipe, under the same paths.

    A phase begins with the first step that starts at or after its token, and has at least one
    step. A phase may have another layout of the same ranks, so a new process loads the last
    checkpoint of the previous phase. With ``fresh_optimizer`` the optimizer's moments start at
    0.
    """

    keys_group = KeyGroup.MATHEMATICS

    budget: Annotated[PhaseBudget, EMPTY] = PhaseBudget()
    model: Annotated[PhaseModel, EMPTY] = PhaseModel()
    data: Annotated[PhaseData, EMPTY] = PhaseData()
    precision: Annotated[ComponentNode, EMPTY] = Field(default_factory=dict)
    parallelism: Annotated[ComponentNode, EMPTY, KeyGroup.LAYOUT] = Field(default_factory=dict)
    fresh_optimizer: Annotated[bool, EMPTY] = False
