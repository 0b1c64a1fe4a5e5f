"""Fits of the law to runs: the third approach of Hoffmann et al. 2022 (section 3.3 and D.2).

The sum, not the mean, of Huber losses of logarithms is minimised: with the mean gradients fall
below an optimizer's tolerance and it stops early (Besiroglu et al. 2024, arXiv 2404.10102).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.optimize import minimize

from components.errors import RecipeError
from components.scaling.law import LARGEST, Law, RunLosses, Values

# Of the bootstrap: whole runs are drawn, since checkpoints of one are not independent.
DRAWN = 200
LEVEL = 0.90
MOST_FAILED = 0.5  # of the draws: then the runs carry no interval
SEED = 42
DELTA = 1e-3  # Huber's, of the same section
CONSTANTS = 5
# The grid of starts of section D.2: logarithms of A, B and E, then the exponents.
GRID = (
    range(0, 26, 5),
    range(0, 26, 5),
    (-1.0, -0.5, 0.0, 0.5, 1.0),
    *2 * ((0, 0.5, 1, 1.5, 2),),
)
TRIED = 24  # of the grid, those with the least objective
SEEN = 1e-4  # part of the loss: a term below it at all runs is none
SMALLEST = 1e-12  # nats
FLAT = 1e-9  # a gradient below this is none: the sum itself is about 1e-3


def objective(constants: Values, runs: RunLosses) -> tuple[float, Values]:
    """Return the sum of Huber losses, and its gradient by the constants.

    These are a = ln A, b = ln B, e = ln E, alpha and beta.
    The residual of a run is LSE(a - alpha ln N, b - beta ln D, e) - ln L.
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


def fit_law(runs: RunLosses, starts: Sequence[Values] | None = None) -> Law:
    """Fit the five constants; without ``starts`` from the best points of the grid.

    Raises:
        RecipeError: there are too few runs or sizes for five constants, or no minimum is found.
    """
    check_enough(runs)
    found = [
        _descend(start, runs) for start in (grid_starts(runs) if starts is None else starts)
    ]
    value, best = min(found, key=lambda one: one[0])
    a, b, e, alpha, beta = (float(one) for one in best)
    falls = alpha > 0 and beta > 0
    most = [a - alpha * np.log(runs.parameters.min()), b - beta * np.log(runs.tokens.min())]
    if not falls or min(most) < np.log(SEEN * runs.losses.min()) or max(a, b, e) > LARGEST:
        problem = f"the fit gives the exponents {alpha:.3g} and {beta:.3g}: no law"
        raise RecipeError("study", problem, "train sizes and lengths that are further apart")
    A, B, E = np.exp([a, b, e])
    return Law(E=float(E), A=float(A), B=float(B), alpha=alpha, beta=beta, objective=value)


def check_enough(runs: RunLosses) -> None:
    """Refuse runs that cannot tell five constants.

    Raises:
        RecipeError: they have fewer losses, sizes or lengths than that takes.
    """
    sizes, lengths = (len(np.unique(one)) for one in (runs.parameters, runs.tokens))
    if len(runs) <= CONSTANTS or sizes < 3 or lengths < 3:
        problem = f"{len(runs)} runs of {sizes} sizes and {lengths} lengths; five constants are"
        problem += " fitted to six runs at least, of three sizes and three lengths"
        raise RecipeError("study", problem, "train the points that are missing")


def constants_of(law: Law) -> Values:
    """Return the point from which a fit of similar runs starts."""
    factors = np.maximum([law.A, law.B, law.E], SMALLEST)  # a loss with no floor has E = 0
    return np.array([*np.log(factors), law.alpha, law.beta])


def grid_starts(runs: RunLosses) -> list[Values]:
    """Choose of the grid of starts the best ones by their objective."""
    every = [np.array(one, dtype=np.float64) for one in product(*GRID)]
    return sorted(every, key=lambda one: objective(one, runs)[0])[:TRIED]


def _descend(start: Values, runs: RunLosses) -> tuple[float, Values]:
    options = {"gtol": FLAT, "maxiter": 2_000}
    found = minimize(objective, start, args=(runs,), jac=True, method="BFGS", options=options)
    return float(found.fun), found.x


@dataclass(frozen=True, kw_only=True)
class DrawnRange:
    """Between ``low`` and ``high`` lie 90 % of the drawn fits."""

    low: float
    high: float


def drawn_laws(runs: RunLosses, law: Law, draws: int = DRAWN) -> list[Law]:
    """Bootstrap: fit ``draws`` samples of the runs, with replacement, each from the fit of all.

    A sample of too few sizes or lengths, or without a law, is drawn again. Of few runs many
    samples have fewer different values than constants: their fits stay near the start, and the
    interval is too narrow.

    Raises:
        RecipeError: most samples have no law.
    """
    generator, start = np.random.default_rng(SEED), constants_of(law)
    laws, failed = list[Law](), 0
    while len(laws) < draws:
        try:
            laws.append(fit_law(runs[generator.integers(len(runs), size=len(runs))], [start]))
        except RecipeError:
            failed += 1
        if failed > draws * MOST_FAILED / (1 - MOST_FAILED):
            problem = f"most samples of {len(runs)} runs have no law, so there is no interval"
            raise RecipeError("study", problem, "train more sizes and lengths")
    return laws


def interval(laws: Sequence[Law], figure: Callable[[Law], float]) -> DrawnRange:
    """Return between what a figure of the drawn laws lies, by percentiles."""
    values = [figure(one) for one in laws]
    low, high = np.percentile(values, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return DrawnRange(low=float(low), high=float(high))
