"""What every study says: which recipe, on which machine, what is set, and what is compared."""

import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from components.spec.frozen import FrozenMapping
from components.spec.section import Section
from components.spec.sections import Stem

Value = bool | int | float | str
Values = Annotated[tuple[Value, ...], Field(strict=False, min_length=1)]
Names = Annotated[tuple[str, ...], Field(strict=False)]
RECIPE = "recipe"  # the one name without a dot that a point may set


class Objective(Section):
    """What is compared: a key of a run's ``results.json``, and the same thing in a plan.

    ``planned`` is a key of what ``action=plan output=json`` prints; null if no plan knows it.
    """

    measured: str
    planned: str | None


class Study(Section):
    """Runs of one recipe; ``products`` are keys that follow from what varies.

    A name without a dot is no key of the recipe but a factor of some product, or a product
    that nothing sets and a figure counts.
    """

    name: Stem
    why: str
    recipe: str
    cluster: Stem
    set: FrozenMapping[Value]
    products: FrozenMapping[Annotated[tuple[int | str, ...], Field(strict=False)]]

    def values(self, point: Mapping[str, Value]) -> dict[str, Value]:
        """Give every key that the point sets: the fixed ones, its own, the products."""
        every = {**self.set, **point, **self.counted(point)}
        return {key: value for key, value in every.items() if "." in key or key == RECIPE}

    def counted(self, point: Mapping[str, Value]) -> dict[str, int]:
        """Multiply the factors of each product at the point."""
        return {
            key: math.prod(int(point[f]) if isinstance(f, str) else f for f in factors)
            for key, factors in self.products.items()
        }
