"""Prediction of a large run from small runs: loss, interval, and extrapolation factor."""

from collections.abc import Sequence
from operator import attrgetter

from pydantic import BaseModel

from components.scaling.fit import (
    DRAWN,
    LEVEL,
    FigureRange,
    compute_range,
    drawn_laws,
    fit_law,
)
from components.scaling.law import FLOPS_PER_PARAMETER, BestSize, Law, RunLosses

LadderRow = tuple[int, int, float, bool]  # parameters, tokens, loss, whether it is held out
CONVENTION = "parameters without the embedding, FLOPs 6 N D, losses in nats per token"


class LadderRun(BaseModel, frozen=True):
    """One finished run; ``predicted`` is the law's loss. A held-out run is not fitted."""

    parameters: int
    tokens: int
    loss: float
    held_out: bool
    predicted: float
    error: float


class FittedLaw(BaseModel, frozen=True):
    """Constants of the law, ``exponent`` of the best size over FLOPs, and their intervals."""

    E: FigureRange
    A: FigureRange
    B: FigureRange
    alpha: FigureRange
    beta: FigureRange
    exponent: FigureRange
    objective: float
    runs: int
    drawn: int
    level: float


class Beyond(BaseModel, frozen=True):
    """Extrapolation factors: the target's sizes relative to the largest fitted run."""

    parameters: float
    tokens: float
    flops: float


class Prediction(BaseModel, frozen=True):
    """Prediction at ``parameters`` and ``tokens``. ``held_out_error`` is the largest error."""

    parameters: int
    tokens: int
    loss: FigureRange
    law: FittedLaw
    runs: tuple[LadderRun, ...]
    held_out_error: float
    beyond: Beyond
    optimum: BestSize
    convention: str = CONVENTION


def predict_target(
    rows: Sequence[LadderRow], parameters: int, tokens: int
) -> tuple[Prediction, Law]:
    """Fit the runs that are not held out, and predict the target."""
    fitted = RunLosses.from_rows([row[:3] for row in rows if not row[3]])
    law = fit_law(fitted)
    drawn = drawn_laws(fitted, law)
    runs = tuple(_compared(law, *row) for row in rows)
    flops = FLOPS_PER_PARAMETER * parameters * tokens
    return Prediction(
        parameters=parameters,
        tokens=tokens,
        loss=compute_range(law, drawn, lambda fit: fit.predict_loss(parameters, tokens)),
        law=FittedLaw(
            **{
                key: compute_range(law, drawn, attrgetter(key))
                for key in ("E", "A", "B", "alpha", "beta")
            },
            exponent=compute_range(law, drawn, attrgetter("parameters_exponent")),
            objective=law.objective,
            runs=len(fitted),
            drawn=DRAWN,
            level=LEVEL,
        ),
        runs=runs,
        held_out_error=max(abs(run.error) for run in runs if run.held_out),
        beyond=Beyond(
            parameters=parameters / max(fitted.parameters),
            tokens=tokens / max(fitted.tokens),
            flops=flops / max(FLOPS_PER_PARAMETER * fitted.parameters * fitted.tokens),
        ),
        optimum=law.find_optimum(flops),
    ), law


def _compared(law: Law, parameters: int, tokens: int, loss: float, held_out: bool) -> LadderRun:
    predicted = law.predict_loss(parameters, tokens)
    return LadderRun(
        parameters=parameters,
        tokens=tokens,
        loss=loss,
        held_out=held_out,
        predicted=predicted,
        error=predicted / loss - 1,
    )
