"""Fits against what others published of the same runs; sources stand in the tables' heads."""

import csv
from pathlib import Path

import numpy as np
import pytest

from components.scaling.fit import compute_objective, drawn_laws, fit_law
from components.scaling.isoflop import fit_power
from components.scaling.law import Law, RunLosses

DATA = Path(__file__).parent / "data"


def rows(name: str) -> list[dict[str, str]]:
    with (DATA / f"{name}.csv").open(encoding="utf-8") as lines:
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def chinchilla(*, every: bool = False) -> RunLosses:
    """The points of Besiroglu et al. 2024; their fit drops the five largest losses."""
    found = [
        (n := float(row["parameters"]), float(row["training_flop"]) / 6 / n, float(row["loss"]))
        for row in rows("chinchilla_points")
    ]
    cut = np.inf if every else sorted(loss for *_, loss in found)[-5]
    return RunLosses.from_rows([one for one in found if one[-1] < cut])


@pytest.fixture(scope="module")
def fitted() -> tuple[RunLosses, Law]:
    runs = chinchilla()
    assert len(runs) == 240
    return runs, fit_law(runs)


def test_the_minimum_is_that_of_the_replication(fitted: tuple[RunLosses, Law]) -> None:
    _, law = fitted
    assert law.objective == pytest.approx(0.0010182740, abs=1e-9)
    found = (law.E, law.alpha, law.beta)
    assert found == pytest.approx((1.81722, 0.34731, 0.36717), abs=1e-4)
    factors = (law.A, law.B)
    assert factors == pytest.approx((477.83, 2143.4), rel=1e-3)


def test_the_published_constants_are_within_5_per_cent(fitted: tuple[RunLosses, Law]) -> None:
    """Their fit has a scale of the density beside the five constants."""
    _, law = fitted
    found = (law.A, law.B, law.E, law.alpha, law.beta)
    assert found == pytest.approx((482.01, 2085.43, 1.8172, 0.3478, 0.3658), rel=0.05)


@pytest.mark.parametrize(
    ("a", "b", "e", "alpha", "beta", "value"),
    [
        (np.log(406.4), np.log(410.7), np.log(1.69), 0.34, 0.28, 0.0041210),
        (6.0073404, 6.0179186, 0.5267228, 0.33917084, 0.2849083, 0.0012312),
    ],
)
def test_hoffmanns_constants_have_the_known_objective(a, b, e, alpha, beta, value) -> None:
    found, _ = compute_objective(np.array([a, b, e, alpha, beta]), chinchilla())
    assert found == pytest.approx(value, abs=1e-7)


def test_five_runs_more_change_the_fit_as_they_do_elsewhere() -> None:
    law = fit_law(chinchilla(every=True))
    assert law.objective == pytest.approx(0.0018260, abs=1e-7)
    assert (law.alpha, law.beta) == pytest.approx((0.3493, 0.4530), abs=1e-4)


def test_the_optimum_at_chinchillas_flops(fitted: tuple[RunLosses, Law]) -> None:
    best = fitted[1].find_optimum(5.76e23)
    assert best.parameters == pytest.approx(73.2e9, rel=1e-3)
    assert best.tokens == pytest.approx(1.31e12, rel=2e-3)
    assert best.tokens / best.parameters == pytest.approx(17.9, abs=0.05)
    hoffmann = Law(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28, objective=0.0)
    assert hoffmann.find_optimum(5.76e23).parameters == pytest.approx(32.2e9, rel=2e-3)


def test_the_bootstrap_deviates_as_the_replication(fitted: tuple[RunLosses, Law]) -> None:
    """Of 4,000 bootstraps they print 0.0257, 0.0154 and 0.0206."""
    laws = drawn_laws(*fitted)
    found = [np.std([getattr(one, key) for one in laws]) for key in ("E", "alpha", "beta")]
    assert found == pytest.approx([0.0257, 0.0154, 0.0206], rel=0.15)
    exponents = [one.parameters_exponent for one in laws]
    assert np.mean(exponents) == pytest.approx(0.514, abs=0.01)
    assert np.std(exponents) == pytest.approx(0.019, abs=0.004)


# Column; log A, log B, alpha, beta and E; the loss that they predict, what it was, the error.
OLMO_LADDER = """
c4_loss                  2.5244 3.5109 0.1036 0.1620 0.9344  2.3443873 2.4378760 -0.03835
hellaswag_val_bpb        2.4187 4.1005 0.1955 0.2565 0.5019  0.6531766 0.6609339 -0.01174
mmlu_test_bpb            3.6394 4.6061 0.2262 0.2361 0.4541  0.7501562 0.7488274  0.00177
arc_challenge_test_bpb  13.463  3.6492 0.7877 0.1970 0.6546  0.7833239 0.7157248  0.09446
"""
LINES = OLMO_LADDER.strip().splitlines()


@pytest.mark.quick("c4_loss")
@pytest.mark.parametrize("line", LINES, ids=[line.split()[0] for line in LINES])
def test_olmos_ladder_predicts_what_its_authors_predict(line: str) -> None:
    """ArXiv 2412.04403; their L-BFGS-B stops up to 3e-6 of the loss before the minimum."""
    column, *numbers = line.split()
    *constants, predicted, actual, error = map(float, numbers)
    table = rows("olmo_ladder_points")

    def point(row: dict[str, str]) -> tuple[float, float, float]:
        return float(row["parameters"]), float(row["tokens"]), float(row[f"{column}_ma5"])

    law = fit_law(RunLosses.from_rows([point(row) for row in table if row["role"] == "fit"]))
    found = (np.log(law.A), np.log(law.B), law.alpha, law.beta, law.E)
    assert found == pytest.approx(constants, abs=1.5e-4)
    (largest,) = [point(row) for row in table if row["model"] == "13B-5T"]
    assert largest[2] == pytest.approx(actual, abs=1e-7)
    assert law.predict_loss(*largest[:2]) == pytest.approx(predicted, rel=3e-6)
    assert law.predict_loss(*largest[:2]) / actual - 1 == pytest.approx(error, abs=1e-5)


@pytest.mark.parametrize(
    ("counting", "of_parameters", "of_tokens"),
    [
        ("kaplan_matrices_and_head", 0.5361, 0.4889),
        ("chinchilla_all", 0.3745, 0.5008),
        ("transformer_only", 0.6965, 0.4058),
    ],
)
def test_the_counting_decides_nanochat_s_exponents(counting, of_parameters, of_tokens) -> None:
    table = [row for row in rows("nanochat_isoflop_optima") if row["counting"] == counting]
    flops = [float(row["flops"]) for row in table]
    for key, exponent in (("parameters", of_parameters), ("tokens", of_tokens)):
        factor, fitted = fit_power(flops, [float(row[key]) for row in table])
        assert fitted == pytest.approx(exponent, abs=5e-5)
        assert factor * flops[0] ** fitted == pytest.approx(float(table[0][key]), rel=0.1)
