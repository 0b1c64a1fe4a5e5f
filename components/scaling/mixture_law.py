"""Laws of a source's held-out loss over the shares of a mixture: c + exp(sum of t_j r_j).

The form of Ye et al. 2024 (arXiv 2403.16952): c + k exp(sum of t_j r_j). Shares add up to the
same sum in every run, so ln k is a part of every t_j and k is no constant of its own. With
few runs c is 0, and the logarithm of a loss is linear in the shares.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from components.errors import RecipeError
from components.scaling.law import LARGEST, Values

RUNS_A_CONSTANT = {False: 2, True: 3}  # without a floor, and with one
FLOORS = (0.3, 0.6, 0.9)  # of the least loss: the floors that a fit begins with
MOST_STEPS = 100  # of a fit: where no share moves the loss, floor and slopes trade for ever
STEEPEST = 20.0  # a slope: by it 5 % of the tokens more divide what is above the floor by e
LEAST_FLOOR = 1e-6  # of the least loss, below which a floor is none


@dataclass(frozen=True, kw_only=True)
class MixtureLaw:
    """The law of one source's loss: its ``floor`` in nats a token, and a slope a share."""

    floor: float
    slopes: Values

    def loss(self, shares: Values) -> Values:
        """Predict the loss of shares in the last axis, in nats a token."""
        return np.asarray(self.floor + np.exp(np.minimum(shares @ self.slopes, LARGEST)))

    def gradient(self, shares: Values) -> Values:
        """Return the slopes of the loss at one mixture."""
        return np.asarray((self.loss(shares) - self.floor) * self.slopes)


def fewest_runs(sources: int, *, with_floor: bool = False) -> int:
    """Return how many fitted runs a law of so many shares needs.

    Two a constant without a floor, three with one: of nine runs of three sources a left-out
    one was missed by up to 220 % with it, by 22 % without. On RegMix's runs of 17 sources the
    floor is worth it from two a constant on.
    """
    return RUNS_A_CONSTANT[with_floor] * (sources + with_floor)


def has_floor(runs: int, sources: int) -> bool:
    """Return whether there are runs enough for the law with a floor."""
    return runs >= fewest_runs(sources, with_floor=True)


def fit_mixture_law(
    shares: Values, losses: Values, *, with_floor: bool, start: MixtureLaw | None = None
) -> MixtureLaw:
    """Fit by least squares of ln L; ``shares`` (runs, sources), ``losses`` (runs,) in nats.

    Without ``start`` a fit with a floor begins from several, and the best one stays.

    Raises:
        RecipeError: the runs differ in fewer ways than there are constants.
    """
    constants = shares.shape[1] + with_floor
    apart = len(np.unique(shares, axis=0))
    if apart < constants or np.linalg.matrix_rank(shares) < shares.shape[1]:
        problem = f"{apart} different mixtures do not tell the {constants} constants of a law"
        raise RecipeError("study", problem, "raise mixture.runs, or widen mixture.strength")
    if not with_floor:
        return MixtureLaw(floor=0.0, slopes=_slopes(shares, losses))
    if start is not None:
        return _descend(shares, losses, start)[1]
    floors = [part * float(losses.min()) for part in FLOORS]
    starts = [MixtureLaw(floor=c, slopes=_slopes(shares, losses - c)) for c in floors]
    return min((_descend(shares, losses, one) for one in starts), key=lambda found: found[0])[1]


def _slopes(shares: Values, losses: Values) -> Values:
    return np.asarray(np.linalg.lstsq(shares, np.log(losses), rcond=None)[0])


def _descend(shares: Values, losses: Values, start: MixtureLaw) -> tuple[float, MixtureLaw]:
    """Minimise the squares of ln L by Levenberg and Marquardt; a floor is e to a constant.

    Constants stay within ends, beyond which nothing changes: of noise alone they have none.
    """
    logs = np.log(losses)

    low = np.array([-LARGEST, *np.full(shares.shape[1], -STEEPEST)])
    high = np.array([logs.min(), *np.full(shares.shape[1], STEEPEST)])

    def parts(point: Values) -> tuple[Values, Values]:
        held = np.clip(point, low, high)
        terms = np.column_stack([np.full(len(logs), held[0]), shares @ held[1:]])
        total = np.logaddexp(terms[:, 0], terms[:, 1])
        return total, np.exp(terms - total[:, None])

    def residuals(point: Values) -> Values:
        return np.asarray(parts(point)[0] - logs)

    def jacobian(point: Values) -> Values:
        weights = parts(point)[1]
        slopes = np.column_stack([weights[:, 0], weights[:, 1:] * shares])
        return np.where((point > low) & (point < high), slopes, 0.0)

    floor = max(start.floor, LEAST_FLOOR * float(losses.min()))
    begin = np.array([np.log(floor), *start.slopes])
    found = least_squares(residuals, begin, jac=jacobian, method="lm", max_nfev=MOST_STEPS)
    constants = np.clip(found.x, low, high)
    law = MixtureLaw(floor=float(np.exp(constants[0])), slopes=constants[1:])
    return float(found.cost), law


def left_out_errors(shares: Values, losses: Values, *, with_floor: bool) -> Values:
    """Predict each run by a fit to the others; return by which part of its loss that is off.

    Raises:
        RecipeError: without one of the runs the others tell no law.
    """
    errors = []
    for run in range(len(losses)):
        rest = np.arange(len(losses)) != run
        law = fit_mixture_law(shares[rest], losses[rest], with_floor=with_floor)
        errors.append(float(law.loss(shares[run])) / losses[run] - 1)
    return np.array(errors)
