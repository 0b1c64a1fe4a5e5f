"""Ranges of numbers, as the constructors that a recipe names annotate their arguments.

A constructor is the schema of its node: the gate, :mod:`components.spec.targets`, reads from
its source that ``lr`` is ``Positive`` and refuses any other value wherever a recipe is
composed, long before anything is built. Who calls a constructor by hand is not checked.
"""

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(gt=0)]
Tokens = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
