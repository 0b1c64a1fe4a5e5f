"""Calibration: fit the planner's free constants to measured steps.

The fit is a robust least-squares fit of log(predicted / measured): outliers count little. Any
change of a constant has a cost, so an undetermined constant keeps its value.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import median

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from components.config.schema.cluster import Hardware
from components.errors import RecipeError
from components.planner.job import TrainingJob
from components.planner.memory import rank_memory
from components.planner.software import (
    CalibrationErrors,
    Errors,
    SoftwareModel,
    replace_constants,
)
from components.planner.time import plan_time

# Constants and their allowed ranges. A fraction is at most 1. A host time above its limit is a
# fault, not a constant.
SPEED = {
    "product_fraction": (0.05, 1.0),
    "traffic": (1.0, 30.0),
    "launch_seconds": (1e-7, 5e-4),
    "call_seconds": (1e-6, 5e-3),
    "exposed_fraction": (0.0, 1.0),
    "reduced_fraction": (0.1, 4.0),
    "hides_reduction": (0.0, 1.0),
    "step_latencies": (0.0, 100.0),
}
MEMORY = {"fragmentation": (1.0, 2.0), "base_bytes": (0.0, 4e9)}
# A step may be off by a tenth (paired rows of the H100 layouts differ by 1.5 to 24 per cent).
# Changing a constant by its own value, or by a tenth of its range if that is larger, costs the
# same as such a step.
STEP_SPREAD, RANGE_PART = 0.1, 0.1
Constants = dict[str, float]
# The planner does not read these keys: layouts that differ only in them are the same layout.
UNREAD = {
    "offload_optimizer": False,
    "expert_grad_average": "ranks",
    "gc_every_steps": "never",
    "stage_balance": "layers",
}
FEWEST = 2  # layouts per constant, so that half of them are still one per constant


@dataclass(frozen=True, kw_only=True)
class CalibrationStep:
    """Measurement of one layout: seconds per step and, if known, the first rank's peak."""

    job: TrainingJob
    seconds: float
    peak_bytes: float | None


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Fitted constants, and the plan's errors with and without them."""

    layouts: int
    constants: Constants
    errors: CalibrationErrors

    @property
    def is_improvement(self) -> bool:
        """Return whether the fit improves the average prediction of held-out layouts."""
        return self.errors.held_out.mean < self.errors.before.mean


def fit_speed(
    measured: Sequence[CalibrationStep], hardware: Hardware, software: SoftwareModel
) -> Fit:
    """Fit the constants of time; RecipeError for too few layouts or an incomplete profile."""
    figures = _medians((step.job, step.seconds) for step in measured)
    needed = FEWEST * len(SPEED)
    if len(figures) < needed:
        raise RecipeError(
            "calibrate",
            f"{len(figures)} layouts were measured; {len(SPEED)} constants need {needed}",
            "measure more layouts: other microbatches, degrees and numbers of nodes",
        )

    def predict_seconds(job: TrainingJob, changed: SoftwareModel) -> float:
        return plan_time(job, hardware, changed.speed).total_seconds

    return _Fitter(software, "speed", SPEED, predict_seconds, figures).fit_all()


def fit_memory(measured: Sequence[CalibrationStep], software: SoftwareModel) -> Fit | None:
    """Fit the constants of memory, if enough layouts have a measured peak."""
    known = ((step.job, step.peak_bytes) for step in measured if step.peak_bytes is not None)
    figures = _medians(known)
    if len(figures) < FEWEST * len(MEMORY):
        return None

    def predict_bytes(job: TrainingJob, changed: SoftwareModel) -> float:
        return rank_memory(job, 0, changed.memory).peak_bytes

    return _Fitter(software, "memory", MEMORY, predict_bytes, figures).fit_all()


def _medians(pairs: Iterable[tuple[TrainingJob, float]]) -> dict[TrainingJob, float]:
    """Return the median of the measurements of each layout."""
    figures: dict[TrainingJob, list[float]] = defaultdict(list)
    for job, figure in pairs:
        figures[job.with_layout(**UNREAD)].append(figure)
    return {job: median(values) for job, values in figures.items()}


@dataclass(frozen=True)
class _Fitter:
    """Fit of the constants in ``ranges`` of one ``part`` to the layouts' measured figures."""

    software: SoftwareModel
    part: str
    ranges: Mapping[str, tuple[float, float]]
    predict: Callable[[TrainingJob, SoftwareModel], float]
    figures: Mapping[TrainingJob, float]

    def fit_all(self) -> Fit:
        """Fit to all layouts; for held-out errors, fit to each half and test on the other."""
        every = tuple(self.figures)
        # A hash divides the layouts into two halves, so that neither half has all of one kind.
        ordered = sorted(every, key=_lot)
        halves = ordered[::2], ordered[1::2]
        unseen = [
            error
            for half, other in (halves, halves[::-1])
            for error in self.compute_errors(other, self.fit_constants(half))
        ]
        constants = self.fit_constants(every)
        errors = CalibrationErrors(
            before=_summary(self.compute_errors(every, {})),
            fitted=_summary(self.compute_errors(every, constants)),
            held_out=_summary(unseen),
        )
        return Fit(layouts=len(every), constants=constants, errors=errors)

    def fit_constants(self, jobs: Sequence[TrainingJob]) -> Constants:
        """Return the constants that predict ``jobs`` best."""
        section = getattr(self.software, self.part)
        shipped = np.array([float(getattr(section, name)) for name in self.ranges])
        low, high = np.array(list(self.ranges.values())).T
        scale = np.maximum(shipped, RANGE_PART * (high - low))

        def name_values(values: npt.NDArray[np.float64]) -> Constants:
            return dict(zip(self.ranges, map(float, values), strict=True))

        def compute_residuals(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            gaps = [log(ratio) for ratio in self.predict_ratios(jobs, name_values(values))]
            return np.concatenate([np.array(gaps) / STEP_SPREAD, (values - shipped) / scale])

        start = np.clip(shipped, low + 1e-3 * (high - low), high - 1e-3 * (high - low))
        solution = least_squares(
            compute_residuals, start, bounds=(low, high), x_scale=scale, loss="soft_l1"
        )
        return name_values(solution.x)

    def predict_ratios(
        self, jobs: Sequence[TrainingJob], constants: Constants
    ) -> Iterator[float]:
        """Yield predicted / measured for each job with these constants."""
        changed = replace_constants(
            self.software, **{"speed": {}, "memory": {}, self.part: constants}
        )
        return (self.predict(job, changed) / self.figures[job] for job in jobs)

    def compute_errors(self, jobs: Sequence[TrainingJob], constants: Constants) -> list[float]:
        return [abs(ratio - 1) for ratio in self.predict_ratios(jobs, constants)]


def _summary(errors: Sequence[float]) -> Errors:
    middle, ninth = np.quantile(errors, [0.5, 0.9])
    return Errors(mean=float(np.mean(errors)), median=float(middle), p90=float(ninth))


def _lot(job: TrainingJob) -> bytes:
    """Return a hash of a job. The hash uses stable sizes, so new keys do not change it."""
    layout = job.layout
    degrees = *layout.axis_degrees.values(), layout.zero
    sizes = job.shape.total_parameters, job.sequence_length, job.microbatches
    text = repr((*degrees, *sizes, layout.microbatch_sequences, job.layers_by_stage))
    return hashlib.sha256(text.encode()).digest()
