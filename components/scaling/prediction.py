"""What a ladder of small runs says of a large one: loss, interval, and how far it is beyond."""

from collections.abc import Sequence

from pydantic import BaseModel

from components.scaling.fit import DRAWN, LEVEL, drawn_laws, fit_law, interval
from components.scaling.law import FLOPS_PER_PARAMETER, Law, RunLosses

CONVENTION = "parameters without the embedding, FLOPs 6 N D, losses in nats a token"


class LadderRun(BaseModel, frozen=True):
    """One finished run; ``predicted`` is the law's loss, to which a held-out run is new."""

    parameters: int
    tokens: int
    loss: float
    held_out: bool
    predicted: float
    error: float


class FigureRange(BaseModel, frozen=True):
    """A figure, and what lies below and above it in the drawn fits."""

    value: float
    low: float
    high: float


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
    """How many times the target has what the largest fitted run has."""

    parameters: float
    tokens: float
    flops: float


class BestSize(BaseModel, frozen=True):
    """What the law would make of the target's FLOPs."""

    parameters: float
    tokens: float
    loss: float


class Prediction(BaseModel, frozen=True):
    """A prediction at ``parameters`` and ``tokens``; ``held_out_error`` is the largest one."""

    parameters: int
    tokens: int
    loss: FigureRange
    law: FittedLaw
    runs: tuple[LadderRun, ...]
    held_out_error: float
    beyond: Beyond
    optimum: BestSize
    convention: str = CONVENTION


def predict(
    rows: Sequence[tuple[int, int, float, bool]], parameters: int, tokens: int
) -> tuple[Prediction, Law]:
    """Fit runs of parameters, tokens, loss and whether they are held out; predict the target.

    Raises:
        RecipeError: the runs tell no law, or no interval.
    """
    fitted = RunLosses.of([row[:3] for row in rows if not row[3]])
    law = fit_law(fitted)
    drawn = drawn_laws(fitted, law)

    def between(figure: str) -> FigureRange:
        found = interval(drawn, lambda one: float(getattr(one, figure)))
        return FigureRange(value=getattr(law, figure), low=found.low, high=found.high)

    around = interval(drawn, lambda one: one.loss(parameters, tokens))
    runs = tuple(_compared(law, *row) for row in rows)
    best = law.optimum(FLOPS_PER_PARAMETER * parameters * tokens)
    largest = max(fitted.flops)
    return Prediction(
        parameters=parameters,
        tokens=tokens,
        loss=FigureRange(value=law.loss(parameters, tokens), low=around.low, high=around.high),
        law=FittedLaw(
            **{key: between(key) for key in ("E", "A", "B", "alpha", "beta")},
            exponent=between("parameters_exponent"),
            objective=law.objective,
            runs=len(fitted),
            drawn=DRAWN,
            level=LEVEL,
        ),
        runs=runs,
        held_out_error=max(abs(one.error) for one in runs if one.held_out),
        beyond=Beyond(
            parameters=parameters / max(fitted.parameters),
            tokens=tokens / max(fitted.tokens),
            flops=FLOPS_PER_PARAMETER * parameters * tokens / largest,
        ),
        optimum=BestSize(
            parameters=best.parameters,
            tokens=best.tokens,
            loss=law.loss(best.parameters, best.tokens),
        ),
    ), law


def _compared(law: Law, parameters: int, tokens: int, loss: float, held_out: bool) -> LadderRun:
    predicted = law.loss(parameters, tokens)
    return LadderRun(
        parameters=parameters,
        tokens=tokens,
        loss=loss,
        held_out=held_out,
        predicted=predicted,
        error=predicted / loss - 1,
    )
