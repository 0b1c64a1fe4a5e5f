"""The second approach of Hoffmann et al. 2022: the best size of each budget, and its power."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from components.errors import RecipeError

LEAST_SIZES = 4  # of a budget: a parabola goes through any three


def fitted_minimum(
    parameters: npt.ArrayLike, losses: npt.ArrayLike, where: str = "isoflop"
) -> tuple[float, float]:
    """Return the size of least loss, and that loss, by a parabola of losses in ln N.

    Raises:
        RecipeError: there are fewer than four sizes, or the minimum is not between them.
    """
    logs = np.log(np.asarray(parameters, dtype=np.float64))
    if len(np.unique(logs)) < LEAST_SIZES:
        problem = f"{len(np.unique(logs))} sizes of one budget give no parabola"
        raise RecipeError(where, problem, f"train {LEAST_SIZES} at least")
    middle = logs.mean()  # centred: powers of ln N alone are ill-conditioned
    square, linear, constant = np.polyfit(logs - middle, np.asarray(losses), 2)
    place = middle - linear / (2 * square)
    if square <= 0 or not logs.min() < place < logs.max():
        problem = "the least loss of a budget does not lie between its sizes"
        raise RecipeError(where, problem, "train sizes on both sides of it")
    return float(np.exp(place)), float(constant - linear**2 / (4 * square))


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """``factor`` times C to the ``exponent``."""

    factor: float
    exponent: float

    def __call__(self, flops: float) -> float:
        return float(self.factor * flops**self.exponent)


def fit_power(flops: Sequence[float], values: Sequence[float]) -> PowerLaw:
    """Fit a power by least squares on logarithms."""
    exponent, constant = np.polyfit(np.log(flops), np.log(values), 1)
    return PowerLaw(factor=float(np.exp(constant)), exponent=float(exponent))
