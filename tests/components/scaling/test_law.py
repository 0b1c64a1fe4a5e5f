"""Laws of loss: planted ones are found again, and what no law can be read from is refused."""

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from components.errors import RecipeError
from components.scaling import fit
from components.scaling.isoflop import fit_power, fitted_minimum
from components.scaling.law import Law, RunLosses

PLANTED = Law(E=1.7, A=300.0, B=900.0, alpha=0.31, beta=0.36, objective=0.0)
SIZES, RATIOS = (1e7, 3e7, 1e8, 3e8, 1e9), (5, 20, 80)


def planted(noise: float = 0.0, seed: int = 0) -> RunLosses:
    """RunLosses of the law, whose losses are off by some fraction."""
    generator = np.random.default_rng(seed)
    return RunLosses.from_rows([
        (n, ratio * n, PLANTED.predict_loss(n, ratio * n) * np.exp(noise * generator.normal()))
        for n in SIZES
        for ratio in RATIOS
    ])


def test_planted_constants_are_found_again() -> None:
    law = fit.fit_law(planted())
    for key in ("E", "A", "B", "alpha", "beta"):
        assert getattr(law, key) == pytest.approx(getattr(PLANTED, key), rel=1e-3)
    assert law.objective < 1e-12


def test_the_gradient_is_that_of_differences() -> None:
    runs = planted(noise=0.002)
    for place in ([5.0, 6.0, 0.5, 0.3, 0.35], [10.0, 5.0, -1.0, 0.5, 1.0]):
        point = np.array(place)
        by_differences = approx_fprime(point, lambda x: fit.compute_objective(x, runs)[0], 1e-7)
        assert fit.compute_objective(point, runs)[1] == pytest.approx(by_differences, abs=1e-6)


def test_the_optimum_spends_the_flops_and_nothing_beside_it_is_better() -> None:
    for flops in (1e18, 1e25):
        best = PLANTED.find_optimum(flops)
        assert 6 * best.parameters * best.tokens == pytest.approx(flops, rel=1e-12)
        least = PLANTED.predict_loss(best.parameters, best.tokens)
        for factor in (0.9, 1.1):
            assert PLANTED.predict_loss(best.parameters * factor, best.tokens / factor) > least
    wider = PLANTED.find_optimum(1e20).parameters / PLANTED.find_optimum(1e19).parameters
    assert np.log10(wider) == pytest.approx(PLANTED.parameters_exponent)


def test_both_approaches_find_one_exponent() -> None:
    """Parabolas only come near the law: it is no parabola of ln N."""
    budgets, found = (1e19, 1e20, 1e21), []
    for flops in budgets:
        sizes = PLANTED.find_optimum(flops).parameters * np.array([0.7, 0.85, 1.0, 1.2, 1.4])
        losses = [PLANTED.predict_loss(n, flops / 6 / n) for n in sizes]
        found.append(fitted_minimum(sizes, losses)[0])
    _, exponent = fit_power(budgets, found)
    assert exponent == pytest.approx(PLANTED.parameters_exponent, abs=1e-3)


def test_a_parabolas_minimum_is_that_of_its_formula() -> None:
    logs = np.array([14.0, 15.0, 16.5, 18.0])
    size, loss = fitted_minimum(np.exp(logs), 2.0 + 0.3 * (logs - 15.7) ** 2)
    assert (np.log(size), loss) == pytest.approx((15.7, 2.0))


@pytest.mark.parametrize(
    ("sizes", "losses", "problem"),
    [
        ([1e6, 2e6, 4e6], [3.0, 2.9, 3.0], "3 sizes of one budget are too few"),
        ([1e6, 2e6, 4e6, 8e6], [3.0, 2.8, 2.7, 2.65], "is not between its sizes"),
        ([1e6, 2e6, 4e6, 8e6], [3.0, 3.1, 3.1, 3.0], "is not between its sizes"),
    ],
)
def test_a_budget_without_a_minimum_is_refused(sizes, losses, problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        fitted_minimum(sizes, losses)


def test_runs_that_tell_no_law_are_refused_and_have_no_interval() -> None:
    runs = planted()
    with pytest.raises(RecipeError, match=re.escape("5 runs of 2 sizes and 5 lengths")):
        fit.fit_law(runs[np.arange(5)])
    for losses in (1 / runs.losses, (runs.parameters / 1e7) ** 0.1):
        rising = replace(runs, losses=losses)
        with pytest.raises(RecipeError, match="are not a scaling law"):
            fit.fit_law(rising)
    with pytest.raises(RecipeError, match="there is no interval"):
        fit.drawn_laws(rising, PLANTED, draws=2)  # whatever is drawn of rising losses


def test_a_loss_without_a_floor_is_drawn_from_a_small_one() -> None:
    assert np.isfinite(fit.constants_of(replace(PLANTED, E=0.0))).all()


def test_the_same_runs_have_the_same_interval() -> None:
    runs = planted(noise=0.005)
    law = fit.fit_law(runs)
    drawn = (fit.drawn_laws(runs, law, 5) for _ in range(2))
    found = [fit.compute_range(law, laws, lambda one: one.E) for laws in drawn]
    assert found[0] == found[1]
    assert found[0].low <= law.E <= found[0].high
