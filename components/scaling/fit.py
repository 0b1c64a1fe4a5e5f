"""Fit of the scaling law: the third approach of Hoffmann et al. 2022 (sections 3.3 and D.2).

The fit minimizes the sum, not the mean, of Huber losses of logarithms. With the mean, gradients
fall below an optimizer's tolerance and it stops early (Besiroglu et al. 2024, arXiv
2404.10102).
"""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
from pydantic import BaseModel
from scipy.optimize import minimize

from components.errors import RecipeError
from components.scaling.law import LARGEST, FloatArray, Law, RunLosses

# Bootstrap samples. It samples whole runs because checkpoints of a run are not independent.
DRAWN = 200
LEVEL = 0.90
MOST_FAILED = 0.5  # of the samples; above it the runs determine no interval
SEED = 42
DELTA = 1e-3  # Huber's delta, from the same section
CONSTANTS = 5
# Grid of starting points of section D.2: logarithms of A, B and E, then the exponents.
GRID = (
    range(0, 26, 5),
    range(0, 26, 5),
    (-1.0, -0.5, 0.0, 0.5, 1.0),
    *2 * ((0, 0.5, 1, 1.5, 2),),
)
TRIED = 24  # points of the grid with the smallest objective
SEEN = 1e-4  # fraction of the loss: a smaller term at all runs counts as absent
SMALLEST = 1e-12  # nats
FLAT = 1e-9  # smaller gradients count as zero: the sum itself is about 1e-3


def compute_objective(constants: FloatArray, runs: RunLosses) -> tuple[float, FloatArray]:
    """Return the sum of Huber losses, and its gradient with respect to the constants.

    The constants are a = ln A, b = ln B, e = ln E, alpha and beta. The residual of a run is
    LSE(a - alpha ln N, b - beta ln D, e) - ln L.
    """
    a, b, e, alpha, beta = constants
    n, d = np.log(runs.parameters), np.log(runs.tokens)
    terms = np.stack([a - alpha * n, b - beta * d, np.full_like(n, e)])
    largest = terms.max(axis=0)
    weights = np.exp(terms - largest)
    total = weights.sum(axis=0)
    residual = largest + np.log(total) - np.log(runs.losses)
    weights /= total
    size = np.abs(residual)
    near = size <= DELTA
    value = np.where(near, residual**2 / 2, DELTA * (size - DELTA / 2)).sum()
    slope = np.where(near, residual, DELTA * np.sign(residual))
    by_n, by_d, by_e = weights * slope
    gradient = [by_n.sum(), by_d.sum(), by_e.sum(), -(by_n * n).sum(), -(by_d * d).sum()]
    return float(value), np.array(gradient)


def fit_law(runs: RunLosses, starts: Sequence[FloatArray] | None = None) -> Law:
    """Fit the five constants, without ``starts`` from the best points of the grid.

    If the runs are too few, or no minimum is found, raise a RecipeError.
    """
    check_enough(runs)
    options = {"gtol": FLAT, "maxiter": 2_000}
    minima = [
        minimize(compute_objective, start, (runs,), method="BFGS", jac=True, options=options)
        for start in (grid_starts(runs) if starts is None else starts)
    ]
    best = min(minima, key=lambda minimum: float(minimum.fun))
    a, b, e, alpha, beta = map(float, best.x)
    falls = alpha > 0 and beta > 0
    most = [a - alpha * np.log(runs.parameters.min()), b - beta * np.log(runs.tokens.min())]
    if not falls or min(most) < np.log(SEEN * runs.losses.min()) or max(a, b, e) > LARGEST:
        problem = f"the fitted exponents {alpha:.3g} and {beta:.3g} are not a scaling law"
        raise RecipeError("study", problem, "train sizes and lengths that are further apart")
    A, B, E = np.exp([a, b, e])
    return Law(
        E=float(E), A=float(A), B=float(B), alpha=alpha, beta=beta, objective=float(best.fun)
    )


def check_enough(runs: RunLosses) -> None:
    """Raise a RecipeError if the runs are too few to determine five constants."""
    sizes, lengths = (len(np.unique(values)) for values in (runs.parameters, runs.tokens))
    if len(runs) <= CONSTANTS or sizes < 3 or lengths < 3:
        problem = f"{len(runs)} runs of {sizes} sizes and {lengths} lengths; the fit needs at"
        problem += " least six runs, of three sizes and three lengths"
        raise RecipeError("study", problem, "train the missing points")


def constants_of(law: Law) -> FloatArray:
    """Return a starting point for fits of similar runs."""
    factors = np.maximum([law.A, law.B, law.E], SMALLEST)  # a loss without a floor has E = 0
    return np.array([*np.log(factors), law.alpha, law.beta])


def grid_starts(runs: RunLosses) -> list[FloatArray]:
    """Return the points of the starting grid with the smallest objective."""
    every = [np.array(point, dtype=np.float64) for point in product(*GRID)]
    return sorted(every, key=lambda point: compute_objective(point, runs)[0])[:TRIED]


class FigureRange(BaseModel, frozen=True):
    """A value, and the range from ``low`` to ``high`` of 90 % of the bootstrap fits."""

    value: float
    low: float
    high: float


def drawn_laws(runs: RunLosses, law: Law, draws: int = DRAWN) -> list[Law]:
    """Bootstrap: fit ``draws`` samples of the runs, with replacement, from the full fit on.

    A sample with too few sizes or lengths, or without a law, is drawn again, until most samples
    have failed (RecipeError). With few runs, many samples have fewer different values than
    constants. Their fits stay near the start, and the interval is too narrow.
    """
    generator, start = np.random.default_rng(SEED), constants_of(law)
    laws, failed = list[Law](), 0
    while len(laws) < draws:
        try:
            laws.append(fit_law(runs[generator.integers(len(runs), size=len(runs))], [start]))
        except RecipeError:
            failed += 1
        if failed > draws * MOST_FAILED / (1 - MOST_FAILED):
            problem = f"most samples of {len(runs)} runs have no fit, so there is no interval"
            raise RecipeError("study", problem, "train more sizes and lengths")
    return laws


def compute_range(
    law: Law, drawn: Sequence[Law], figure: Callable[[Law], float]
) -> FigureRange:
    """Return a number of a law, and its percentile interval over the bootstrap laws."""
    values = [figure(drawn_law) for drawn_law in drawn]
    low, high = np.percentile(values, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return FigureRange(value=figure(law), low=float(low), high=float(high))
