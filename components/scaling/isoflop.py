"""The second approach of Hoffmann et al. 2022: the best size of each budget, and its power."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from components.errors import RecipeError
from components.scaling.law import FLOPS_PER_PARAMETER

LEAST_SIZES = 4  # of a budget: a parabola goes through any three
LEAST_BUDGETS = 3  # of a power of two constants, so that it can be off


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


class BudgetOptimum(BaseModel, frozen=True):
    """The size of least loss among the runs of ``flops``, and that loss, by their parabola."""

    flops: float
    parameters: float
    loss: float


class BestByBudgets(BaseModel, frozen=True):
    """The best size of each budget, the power that they follow, and what it says of a target.

    ``parameters`` on ``tokens`` are the best use of the target's FLOPs.
    """

    budgets: tuple[BudgetOptimum, ...]
    exponent: float
    parameters: float
    tokens: float


def best_by_budgets(
    runs: Mapping[float, Sequence[tuple[float, float]]], flops: float
) -> BestByBudgets:
    """Fit a parabola to the sizes and losses of each budget, and a power to the best sizes.

    Raises:
        RecipeError: fewer than three budgets have a least loss between their sizes.
    """
    found, missed = list[BudgetOptimum](), list[str]()
    for budget, pairs in sorted(runs.items()):
        try:
            sizes, losses = np.array(pairs, dtype=np.float64).T
            size, loss = fitted_minimum(sizes, losses, where=f"{budget:g} FLOPs")
        except RecipeError as error:
            missed.append(f"{error.path}: {error.problem}")
            continue
        found.append(BudgetOptimum(flops=budget, parameters=size, loss=loss))
    if len(found) < LEAST_BUDGETS:
        raise RecipeError("study", "; ".join(missed), "train sizes on both sides of each best")
    power = fit_power([one.flops for one in found], [one.parameters for one in found])
    return BestByBudgets(
        budgets=tuple(found),
        exponent=power.exponent,
        parameters=power(flops),
        tokens=flops / FLOPS_PER_PARAMETER / power(flops),
    )
