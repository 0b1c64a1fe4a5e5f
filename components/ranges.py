"""Ranges of numbers, and places of files, by which specifications annotate their fields."""

from typing import Annotated

from pydantic import Field

MOST = 10**18  # what is counted here stays a 64-bit integer, and a float with its magnitude
Count = Annotated[int, Field(gt=0, le=MOST)]
Tokens = Annotated[int, Field(ge=0, le=MOST)]
Ranks = Annotated[int, Field(gt=0, le=1_000_000)]  # eight times Aurora's tiles
Heads = Annotated[int, Field(gt=0, le=100_000)]
Layers = Annotated[
    int, Field(gt=0, le=10_000)
]  # one object each; the deepest model here has 126
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]


class NamesPlace:
    """Mark a text that names a file or a folder: a received recipe may not lead outside."""


Place = Annotated[str, NamesPlace()]
