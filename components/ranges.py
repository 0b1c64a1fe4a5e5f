"""Annotated field types for specifications: ranges of numbers and paths of files."""

from typing import Annotated

from pydantic import Field

MOST = 10**18  # counts fit a 64-bit integer, and a float keeps their magnitude
Count = Annotated[int, Field(gt=0, le=MOST)]
Tokens = Annotated[int, Field(ge=0, le=MOST)]
Ranks = Annotated[int, Field(gt=0, le=1_000_000)]  # eight times Aurora's tiles
Heads = Annotated[int, Field(gt=0, le=100_000)]
# Each layer is an object. The deepest model here has 126 layers.
Layers = Annotated[int, Field(gt=0, le=10_000)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]


class NamesPlace:
    """Marker for text fields that contain a path: a received recipe must not point outside."""


Place = Annotated[str, NamesPlace()]
