"""IsoFLOP fit (second approach of Hoffmann et al. 2022): best size per budget, power law."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from components.errors import RecipeError
from components.scaling.law import FLOPS_PER_PARAMETER

LEAST_SIZES = 4  # per budget: any three points are on a parabola
LEAST_BUDGETS = 3  # for a power law of two constants, so that it can be wrong


def fitted_minimum(
    parameters: npt.ArrayLike, losses: npt.ArrayLike, where: str = "isoflop"
) -> tuple[float, float]:
    """Return the size with the lowest loss, and the loss, from a parabola over ln N.

    A RecipeError if there are fewer than four sizes, or the minimum is not between them.
    """
    logs = np.log(np.asarray(parameters, dtype=np.float64))
    if len(np.unique(logs)) < LEAST_SIZES:
        problem = f"{len(np.unique(logs))} sizes of one budget are too few for a parabola"
        raise RecipeError(where, problem, f"train at least {LEAST_SIZES} sizes")
    middle = logs.mean()  # centered: powers of ln N alone are ill-conditioned
    square, linear, constant = np.polyfit(logs - middle, np.asarray(losses), 2)
    minimum = middle - linear / (2 * square)
    if square <= 0 or not logs.min() < minimum < logs.max():
        problem = "the lowest loss of a budget is not between its sizes"
        raise RecipeError(where, problem, "train sizes on both sides of the lowest loss")
    return float(np.exp(minimum)), float(constant - linear**2 / (4 * square))


def fit_power(flops: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Fit a power law by least squares on logarithms; return its factor and exponent."""
    exponent, constant = np.polyfit(np.log(flops), np.log(values), 1)
    return float(np.exp(constant)), float(exponent)


class BudgetOptimum(BaseModel, frozen=True):
    """Size with the lowest loss among runs of ``flops``, and that loss, from their parabola."""

    flops: float
    parameters: float
    loss: float


class BestByBudgets(BaseModel, frozen=True):
    """Best size of each budget, their power law, and the law's values at a target.

    ``parameters`` and ``tokens`` are the best use of the target's FLOPs.
    """

    budgets: tuple[BudgetOptimum, ...]
    exponent: float
    parameters: float
    tokens: float


def best_by_budgets(
    runs: Mapping[float, Sequence[tuple[float, float]]], flops: float
) -> BestByBudgets:
    """Fit a parabola to the losses of each budget, and a power law to the best sizes.

    A RecipeError if fewer than three budgets have a minimum between their sizes.
    """
    optima, missed = list[BudgetOptimum](), list[str]()
    for budget, pairs in sorted(runs.items()):
        try:
            sizes, losses = np.array(pairs, dtype=np.float64).T
            size, loss = fitted_minimum(sizes, losses, where=f"{budget:g} FLOPs")
        except RecipeError as error:
            missed.append(f"{error.path}: {error.problem}")
            continue
        optima.append(BudgetOptimum(flops=budget, parameters=size, loss=loss))
    if len(optima) < LEAST_BUDGETS:
        raise RecipeError("study", "; ".join(missed), "train sizes around each optimum")
    factor, exponent = fit_power(
        [optimum.flops for optimum in optima], [optimum.parameters for optimum in optima]
    )
    parameters = factor * flops**exponent
    return BestByBudgets(
        budgets=tuple(optima),
        exponent=exponent,
        parameters=parameters,
        tokens=flops / FLOPS_PER_PARAMETER / parameters,
    )
