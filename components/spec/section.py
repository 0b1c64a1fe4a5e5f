"""What every fixed section of a recipe is built from."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from components.ranges import Count as Count

Fraction = Annotated[float, Field(gt=0, lt=1)]


class Section(BaseModel):
    """Strict, frozen, and closed: an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
