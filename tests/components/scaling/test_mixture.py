"""Laws of mixtures: planted ones are found again, proposals are the minima of a grid."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import approx_fprime, curve_fit

from components.errors import RecipeError
from components.scaling.mixture import (
    MixtureGoal,
    MixtureRuns,
    best_mixture,
    is_between,
    propose_mixture,
)
from components.scaling.mixture_law import (
    MixtureLaw,
    fewest_runs,
    fit_mixture_law,
    has_floor,
    left_out_errors,
)

Array = npt.NDArray[np.float64]
NAMES = ("code", "web", "books")
# Each source lowers its own loss most; in the middle there is a minimum of their sum.
PLANTED = [
    MixtureLaw(floor=1.2, slopes=np.array([-1.5, 0.6, 0.4])),
    MixtureLaw(floor=2.0, slopes=np.array([0.6, -1.6, 0.5])),
    MixtureLaw(floor=1.6, slopes=np.array([0.5, 0.1, -1.8])),
]


def drawn_shares(runs: int, sources: int = 3, seed: int = 3) -> Array:
    return np.random.default_rng(seed).dirichlet(np.ones(sources), size=runs)


def planted(
    count: int, *, noise: float = 0.0, laws: Sequence[MixtureLaw] = PLANTED
) -> MixtureRuns:
    """Runs of the laws, whose losses are off by some part; the last one is held out."""
    shares = drawn_shares(count)
    shares[:3] = np.full((3, 3), 0.05) + 0.85 * np.eye(3)  # all others are between these
    off = np.exp(noise * np.random.default_rng(1).normal(size=(count, len(laws))))
    losses = np.stack([law.loss(shares) for law in laws], axis=1) * off
    held_out = [run == count - 1 for run in range(count)]
    return MixtureRuns(
        sources=NAMES, targets=NAMES, shares=shares, losses=losses, held_out=held_out
    )


def question(**changes: Array) -> MixtureGoal:
    own = np.array([0.6, 0.3, 0.1])
    asked = {"weights": np.ones(3) / 3, "low": np.zeros(3), "high": np.ones(3), "own": own}
    return MixtureGoal(**{**asked, **changes})


def test_a_planted_law_is_found_again() -> None:
    shares = drawn_shares(12)
    for law in PLANTED:
        found = fit_mixture_law(shares, law.loss(shares), with_floor=True)
        assert found.floor == pytest.approx(law.floor, rel=1e-4)
        assert found.slopes == pytest.approx(law.slopes, abs=1e-3)


def test_without_a_floor_logarithms_are_linear_in_the_shares() -> None:
    shares, slopes = drawn_shares(7), np.array([1.2, 1.5, 0.9])
    found = fit_mixture_law(shares, np.exp(shares @ slopes), with_floor=False)
    assert found.floor == 0.0
    assert found.slopes == pytest.approx(slopes)


def test_the_factor_of_the_published_form_is_a_part_of_every_slope() -> None:
    """C + k exp(t r) of Ye et al. with k = 2.5, fitted with k by another minimiser."""
    shares = drawn_shares(30)
    noise = np.exp(0.01 * np.random.default_rng(5).normal(size=30))
    losses = (1.4 + 2.5 * np.exp(shares @ [-1.0, 0.4, 0.2])) * noise

    def form(runs: Array, c: float, k: float, first: float, second: float) -> Array:
        """Of three slopes with a factor one is free: it is 0 here."""
        return np.log(c + k * np.exp(runs[:, 0] * first + runs[:, 1] * second))

    # By the logarithms, as ours are.
    constants, _ = curve_fit(form, shares, np.log(losses), p0=[1.0, 2.0, -0.5, 0.1])
    ours = fit_mixture_law(shares, losses, with_floor=True)
    others = drawn_shares(50, seed=9)
    assert ours.loss(others) == pytest.approx(np.exp(form(others, *constants)), rel=1e-5)


def test_the_gradient_is_that_of_differences() -> None:
    place = np.array([0.2, 0.5, 0.3])
    for law in PLANTED:
        by_differences = approx_fprime(place, lambda at, law=law: float(law.loss(at)), 1e-7)
        assert law.gradient(place) == pytest.approx(by_differences, abs=1e-5)


def test_a_left_out_run_is_predicted_by_the_others() -> None:
    runs = planted(10)
    assert left_out_errors(runs.shares, runs.losses[:, 0], with_floor=True) == pytest.approx(
        np.zeros(10), abs=1e-4
    )
    losses = runs.losses[:, 0] * np.array([1.1, *np.ones(9)])
    errors = left_out_errors(runs.shares, losses, with_floor=True)
    assert errors[0] == pytest.approx(1 / 1.1 - 1, abs=1e-3)


@pytest.mark.parametrize(
    ("low", "high", "weights"),
    [
        ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1, 1, 1]),
        ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [6, 1, 0]),
        ([0.1, 0.45, 0.0], [0.2, 1.0, 0.3], [1, 1, 1]),
    ],
)
def test_the_proposal_is_the_best_of_a_fine_grid_over_the_simplex(
    low: list[float], high: list[float], weights: list[float]
) -> None:
    asked = question(
        low=np.array(low), high=np.array(high), weights=np.array(weights) / sum(weights)
    )
    first, second = np.meshgrid(np.linspace(0, 1, 401), np.linspace(0, 1, 401))
    grid = np.stack([first.ravel(), second.ravel(), 1 - first.ravel() - second.ravel()], axis=1)
    inside = np.all((grid >= asked.low - 1e-9) & (grid <= asked.high + 1e-9), axis=1)
    losses = sum(
        w * law.loss(grid[inside]) for w, law in zip(asked.weights, PLANTED, strict=True)
    )
    found = best_mixture(PLANTED, asked)
    assert found.sum() == pytest.approx(1.0)
    assert found == pytest.approx(grid[inside][np.argmin(losses)], abs=3e-3)
    ours = sum(w * law.loss(found) for w, law in zip(asked.weights, PLANTED, strict=True))
    assert ours <= np.min(losses) + 1e-9


def test_what_other_sources_keep_is_left_to_them() -> None:
    """Of shares that add up to 0.8 the proposal has 0.8, and is the best of a grid there."""
    asked = question(own=np.array([0.5, 0.2, 0.1]), high=np.full(3, 0.8))
    found = best_mixture(PLANTED, asked)
    assert found.sum() == pytest.approx(0.8)
    first, second = np.meshgrid(np.linspace(0, 0.8, 321), np.linspace(0, 0.8, 321))
    grid = np.stack(
        [first.ravel(), second.ravel(), 0.8 - first.ravel() - second.ravel()], axis=1
    )
    grid = grid[grid[:, 2] >= 0]
    losses = np.sum([law.loss(grid) for law in PLANTED], axis=0)
    assert found == pytest.approx(grid[np.argmin(losses)], abs=3e-3)


def test_a_mixture_is_between_others_where_its_barycentric_weights_are_positive() -> None:
    corners = np.array([[0.8, 0.1, 0.1], [0.1, 0.7, 0.2], [0.2, 0.2, 0.6]])
    for shares in drawn_shares(40, seed=7):
        weights = np.linalg.solve(corners.T, shares)
        assert is_between(shares, corners) == bool(np.all(weights >= 0))


def test_of_planted_laws_the_gain_is_what_they_say() -> None:
    found = propose_mixture(planted(14), question())
    best = best_mixture(PLANTED, question())
    gain = np.mean([float(law.loss(question().own) - law.loss(best)) for law in PLANTED])
    assert found.gain.value == pytest.approx(gain, rel=1e-3)
    assert found.gain.low == pytest.approx(gain, rel=0.02)
    assert [one.proposed.value for one in found.shares] == pytest.approx(best, abs=1e-3)
    assert found.with_floor
    assert found.is_tried
    assert found.is_own_tried
    assert [one.held_out for one in found.runs] == [*[False] * 13, True]
    assert max(abs(one.held_out) for one in found.laws) < 1e-4
    assert max(abs(one.left_out_worst) for one in found.laws) < 1e-3
    assert all(one.left_out <= abs(one.left_out_worst) for one in found.laws)


def test_noise_widens_the_intervals_and_hides_a_small_gain() -> None:
    best = best_mixture(PLANTED, question())
    near = question(own=best + np.array([0.02, -0.01, -0.01]))
    found = propose_mixture(planted(14, noise=0.03), near)
    assert found.gain.low < 1e-3
    assert found.own.low < found.own.value < found.own.high
    for one in found.shares:
        assert one.proposed.low <= one.proposed.high


def test_few_runs_have_a_law_without_a_floor() -> None:
    assert (fewest_runs(3), fewest_runs(3, with_floor=True)) == (6, 12)
    assert [has_floor(runs, 3) for runs in (11, 12)] == [False, True]
    found = propose_mixture(planted(8), question())
    assert not found.with_floor
    assert {one.floor for one in found.laws} == {0.0}
    assert found == propose_mixture(planted(8), question())


@pytest.mark.parametrize("with_floor", [False, True])
def test_runs_of_too_few_mixtures_tell_no_law(with_floor: bool) -> None:
    shares = np.repeat(drawn_shares(2), 4, axis=0)
    with pytest.raises(
        RecipeError, match=r"2 different mixtures do not tell the [34] constants"
    ):
        fit_mixture_law(shares, np.ones(8), with_floor=with_floor)


def test_runs_of_which_most_samples_tell_no_law_have_no_interval() -> None:
    """Of 12 runs samples have about 8 that differ: too few for 11 slopes."""
    shares = drawn_shares(13, 11)
    losses = np.exp(shares @ np.linspace(0.5, 1.5, 11))[:, None]
    names = tuple(f"source{i}" for i in range(11))
    held_out = [*[False] * 12, True]
    runs = MixtureRuns(
        sources=names, targets=("a",), shares=shares, losses=losses, held_out=held_out
    )
    ends = {"low": np.zeros(11), "high": np.ones(11), "own": np.full(11, 1 / 11)}
    with pytest.raises(RecipeError, match="of 12 runs most samples tell no law"):
        propose_mixture(runs, MixtureGoal(weights=np.ones(1), **ends))
