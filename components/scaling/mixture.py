"""What small runs of several mixtures say of the best one: shares, losses, and intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel
from scipy.optimize import linprog, minimize

from components.scaling.fit import DRAWN, LEVEL, drawn_fits
from components.scaling.law import Values
from components.scaling.mixture_law import (
    MixtureLaw,
    fit_mixture_law,
    has_floor,
    left_out_errors,
)
from components.scaling.prediction import FigureRange

EXACT = 1e-12  # of the weighted loss, by which the search for its minimum ends
NEAR = 1e-6  # shares this near to each other are the same


@dataclass(frozen=True, kw_only=True)
class MixtureRuns:
    """Finished runs: ``shares`` (runs, sources), ``losses`` (runs, targets) in nats a token.

    ``held_out`` (runs,) are no part of the fit. Shares of a run add up to the same ``mass``:
    1, or what other sources, whose shares are fixed, leave.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    shares: Values
    losses: Values
    held_out: Sequence[bool]


@dataclass(frozen=True, kw_only=True)
class MixtureGoal:
    """What is minimised: losses by ``weights`` (targets,), shares from ``low`` to ``high``.

    ``own`` (sources,) are the shares that the proposal stands beside.
    """

    weights: Values
    low: Values
    high: Values
    own: Values


class ProposedShare(BaseModel, frozen=True):
    """A source's share: the recipe's own, what was tried, and what is proposed."""

    source: str
    own: float
    tried: tuple[float, float]
    proposed: FigureRange


class TargetFit(BaseModel, frozen=True):
    """The law of one held-out loss; errors are parts of it, ``left_out`` is their median."""

    source: str
    floor: float
    slopes: Mapping[str, float]
    left_out: float
    left_out_worst: float
    held_out: float
    own: float
    proposed: float


class MixtureRun(BaseModel, frozen=True):
    """One run: its shares, its weighted loss, and the laws' weighted loss."""

    shares: Mapping[str, float]
    loss: float
    held_out: bool
    predicted: float
    error: float


class MixtureProposal(BaseModel, frozen=True):
    """The mixture of the least weighted loss; ``gain`` is what it has less than the own one.

    Intervals are of ``drawn`` fits. ``is_tried`` says that the proposal lies between mixtures
    that were tried, ``is_own_tried`` the same of the own one.
    """

    shares: tuple[ProposedShare, ...]
    own: FigureRange
    proposed: FigureRange
    gain: FigureRange
    is_tried: bool
    is_own_tried: bool
    with_floor: bool
    runs: tuple[MixtureRun, ...]
    laws: tuple[TargetFit, ...]
    drawn: int = DRAWN
    level: float = LEVEL


def propose_mixture(runs: MixtureRuns, asked: MixtureGoal) -> MixtureProposal:
    """Fit a law to each held-out loss and minimise their weighted sum.

    Raises:
        RecipeError: the runs tell no law, or most samples of them tell none.
    """
    chosen = ~np.asarray(runs.held_out)
    shares, losses = runs.shares[chosen], runs.losses[chosen]
    with_floor = has_floor(*shares.shape)
    columns = range(losses.shape[1])
    laws = [fit_mixture_law(shares, losses[:, i], with_floor=with_floor) for i in columns]
    best = best_mixture(laws, asked)
    drawn = _drawn_laws(shares, losses, laws, with_floor=with_floor)
    others = np.array([best_mixture(one, asked) for one in drawn])
    at_own = np.array([_weighted(one, asked, asked.own) for one in drawn])
    at_best = np.array([_weighted(one, asked, best) for one in drawn])
    own, proposed = _weighted(laws, asked, asked.own), _weighted(laws, asked, best)
    return MixtureProposal(
        shares=tuple(
            ProposedShare(
                source=name,
                own=float(asked.own[i]),
                tried=(float(shares[:, i].min()), float(shares[:, i].max())),
                proposed=_between(float(best[i]), others[:, i]),
            )
            for i, name in enumerate(runs.sources)
        ),
        own=_between(own, at_own),
        proposed=_between(proposed, at_best),
        gain=_between(own - proposed, at_own - at_best),
        is_tried=is_between(best, shares),
        is_own_tried=is_between(asked.own, shares),
        with_floor=with_floor,
        runs=tuple(_compared(runs, laws, asked, run) for run in range(len(runs.shares))),
        laws=tuple(_fitted(runs, laws[i], asked, best, i, with_floor) for i in columns),
    )


def best_mixture(laws: Sequence[MixtureLaw], asked: MixtureGoal) -> Values:
    """Find the shares of the least weighted loss; it is convex, so there is one minimum."""
    room, mass = asked.high - asked.low, float(asked.own.sum())
    begin = asked.low + room * (mass - asked.low.sum()) / max(room.sum(), EXACT)

    def loss(shares: Values) -> tuple[float, Values]:
        parts = zip(asked.weights, laws, strict=True)
        gradient = sum(weight * law.gradient(shares) for weight, law in parts)
        return _weighted(laws, asked, shares), np.asarray(gradient)

    whole = {
        "type": "eq",
        "fun": lambda shares: shares.sum() - mass,
        "jac": lambda shares: np.ones_like(shares),
    }
    bounds = list(zip(asked.low, asked.high, strict=True))
    options = {"ftol": EXACT, "maxiter": 1_000}
    found = minimize(
        loss, begin, jac=True, method="SLSQP", bounds=bounds, constraints=whole, options=options
    )
    return np.asarray(np.clip(found.x, asked.low, asked.high))


def is_between(shares: Values, tried: Values) -> bool:
    """Whether a mixture is a mean of ``tried`` ones with weights: in their convex hull."""
    sums = np.vstack([tried.T, np.ones(len(tried))])
    target = np.append(shares, 1.0)
    # Slack on both sides, minimised: shares are rounded, and no sum is exact.
    slack = np.eye(len(target))
    costs = np.concatenate([np.zeros(len(tried)), np.ones(2 * len(target))])
    found = linprog(costs, A_eq=np.hstack([sums, slack, -slack]), b_eq=target)
    return bool(found.fun < NEAR * len(target))


def _drawn_laws(
    shares: Values, losses: Values, laws: Sequence[MixtureLaw], *, with_floor: bool
) -> list[list[MixtureLaw]]:
    """Fit samples of the runs, with replacement, each from the fits to all."""

    def fitted(kept: npt.NDArray[np.intp]) -> list[MixtureLaw]:
        return [
            fit_mixture_law(shares[kept], losses[kept, i], with_floor=with_floor, start=law)
            for i, law in enumerate(laws)
        ]

    return drawn_fits(len(shares), fitted, "raise mixture.runs")


def _weighted(laws: Sequence[MixtureLaw], asked: MixtureGoal, shares: Values) -> float:
    return float(asked.weights @ np.array([float(law.loss(shares)) for law in laws]))


def _between(value: float, drawn: Values) -> FigureRange:
    low, high = np.percentile(drawn, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return FigureRange(value=value, low=float(low), high=float(high))


def _compared(
    runs: MixtureRuns, laws: Sequence[MixtureLaw], asked: MixtureGoal, run: int
) -> MixtureRun:
    loss, predicted = (
        float(asked.weights @ runs.losses[run]),
        _weighted(laws, asked, runs.shares[run]),
    )
    return MixtureRun(
        shares=dict(zip(runs.sources, map(float, runs.shares[run]), strict=True)),
        loss=loss,
        held_out=bool(runs.held_out[run]),
        predicted=predicted,
        error=predicted / loss - 1,
    )


def _fitted(
    runs: MixtureRuns,
    law: MixtureLaw,
    asked: MixtureGoal,
    best: Values,
    target: int,
    with_floor: bool,
) -> TargetFit:
    chosen = ~np.asarray(runs.held_out)
    shares, losses = runs.shares[chosen], runs.losses[chosen, target]
    errors = left_out_errors(shares, losses, with_floor=with_floor)
    apart = law.loss(runs.shares[~chosen]) / runs.losses[~chosen, target] - 1
    return TargetFit(
        source=runs.targets[target],
        floor=law.floor,
        slopes=dict(zip(runs.sources, map(float, law.slopes), strict=True)),
        left_out=float(np.median(np.abs(errors))),
        left_out_worst=float(errors[np.abs(errors).argmax()]),
        held_out=float(apart[np.abs(apart).argmax()]),
        own=float(law.loss(asked.own)),
        proposed=float(law.loss(best)),
    )
