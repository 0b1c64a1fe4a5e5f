"""Fit the planner's few free constants to measured steps.

By least squares of the logarithms of predicted over measured seconds, or bytes, and robustly: a
step that something else slowed counts little. To move a constant must be paid for by the steps,
so that one of which they say nothing stays as it was.
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
from components.planner.software import CalibrationErrors, Errors, SoftwareModel, corrected
from components.planner.time import plan_time

# Constants and the values that they may take: a part of something is no more than all of it,
# and what takes longer than this at the host is a fault, not a constant.
SPEED = {
    "product_fraction": (0.05, 1.0),
    "traffic": (1.0, 30.0),
    "layer_seconds": (1e-5, 5e-2),
    "tensor_layer_seconds": (1e-5, 5e-2),
    "crossing_layer_seconds": (0.0, 2e-2),
    "exposed_fraction": (0.0, 1.0),
    "reduced_fraction": (0.1, 4.0),
    "hides_reduction": (0.0, 1.0),
    "step_latencies": (0.0, 100.0),
}
MEMORY = {"fragmentation": (1.0, 2.0), "base_bytes": (0.0, 4e9)}
# A step may be off by a tenth (paired rows of the H100 layouts differ by 1.5 to 24 per cent); a
# constant that moves by as much as it is, or by a tenth of its range, costs as much as that.
STEP_SPREAD, RANGE_PART = 0.1, 0.1
Constants = dict[str, float]
# The planner reads none of these keys: layouts that differ in them alone are one layout.
UNREAD = {
    "offload_optimizer": False,
    "expert_divisor": "ranks",
    "gc_every_steps": "never",
    "stage_balance": "layers",
}
FEWEST = 2  # layouts for each constant, so that half of them still are one for each


@dataclass(frozen=True, kw_only=True)
class CalibrationStep:
    """One layout and what it took: seconds of a step, and bytes of the first rank if known."""

    job: TrainingJob
    seconds: float
    peak_bytes: float | None


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Constants, and how far off the plan is with and without them."""

    layouts: int
    constants: Constants
    errors: CalibrationErrors

    @property
    def helps(self) -> bool:
        """Return whether layouts that were not fitted to are predicted better on average."""
        return self.errors.held_out.mean < self.errors.before.mean


def fit_speed(
    measured: Sequence[CalibrationStep], hardware: Hardware, software: SoftwareModel
) -> Fit:
    """Fit the constants of time.

    Raises:
        RecipeError: too few layouts, or the profile lacks a figure that the plan needs.
    """
    figures = _medians((one.job, one.seconds) for one in measured)
    needed = FEWEST * len(SPEED)
    if len(figures) < needed:
        raise RecipeError(
            "calibrate",
            f"{len(figures)} layouts were measured; {len(SPEED)} constants need {needed}",
            "measure more layouts: other microbatches, degrees and numbers of nodes",
        )

    def predict(job: TrainingJob, changed: SoftwareModel) -> float:
        return plan_time(job, hardware, changed.speed).total

    return _Fitter(software, "speed", SPEED, predict, figures).fit()


def fit_memory(measured: Sequence[CalibrationStep], software: SoftwareModel) -> Fit | None:
    """Fit the constants of memory, if enough layouts have their peak."""
    known = ((one.job, one.peak_bytes) for one in measured if one.peak_bytes is not None)
    figures = _medians(known)
    if len(figures) < FEWEST * len(MEMORY):
        return None

    def predict(job: TrainingJob, changed: SoftwareModel) -> float:
        return rank_memory(job, 0, changed.memory).peak

    return _Fitter(software, "memory", MEMORY, predict, figures).fit()


def _medians(pairs: Iterable[tuple[TrainingJob, float]]) -> dict[TrainingJob, float]:
    """Take the median of what was measured of one layout more than once."""
    figures: dict[TrainingJob, list[float]] = defaultdict(list)
    for job, figure in pairs:
        figures[job.with_layout(**UNREAD)].append(figure)
    return {job: median(values) for job, values in figures.items()}


@dataclass(frozen=True)
class _Fitter:
    """What is fitted: which constants of which part, to which figure of each layout."""

    software: SoftwareModel
    part: str
    ranges: Mapping[str, tuple[float, float]]
    predict: Callable[[TrainingJob, SoftwareModel], float]
    figures: Mapping[TrainingJob, float]

    def fit(self) -> Fit:
        """Fit to all layouts, and for the held-out errors to each half of them in turn."""
        every = tuple(self.figures)
        # Dealt to two halves by a hash, so that neither has all of one kind.
        ordered = sorted(every, key=_lot)
        halves = ordered[::2], ordered[1::2]
        unseen = [
            error
            for half, other in (halves, halves[::-1])
            for error in self.errors(other, self.constants(half))
        ]
        constants = self.constants(every)
        errors = CalibrationErrors(
            before=_summary(self.errors(every, {})),
            fitted=_summary(self.errors(every, constants)),
            held_out=_summary(unseen),
        )
        return Fit(layouts=len(every), constants=constants, errors=errors)

    def constants(self, jobs: Sequence[TrainingJob]) -> Constants:
        """Return the constants that predict ``jobs`` best."""
        section = getattr(self.software, self.part)
        shipped = np.array([float(getattr(section, name)) for name in self.ranges])
        low, high = np.array(list(self.ranges.values())).T
        scale = np.maximum(shipped, RANGE_PART * (high - low))

        def named(values: npt.NDArray[np.float64]) -> Constants:
            return dict(zip(self.ranges, map(float, values), strict=True))

        def residuals(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            gaps = [log(ratio) for ratio in self.ratios(jobs, named(values))]
            return np.concatenate([np.array(gaps) / STEP_SPREAD, (values - shipped) / scale])

        start = np.clip(shipped, low + 1e-3 * (high - low), high - 1e-3 * (high - low))
        found = least_squares(
            residuals, start, bounds=(low, high), x_scale=scale, loss="soft_l1"
        )
        return named(found.x)

    def ratios(self, jobs: Sequence[TrainingJob], constants: Constants) -> Iterator[float]:
        """Divide what is predicted with these constants by what was measured."""
        changed = corrected(self.software, **{"speed": {}, "memory": {}, self.part: constants})
        return (self.predict(job, changed) / self.figures[job] for job in jobs)

    def errors(self, jobs: Sequence[TrainingJob], constants: Constants) -> list[float]:
        return [abs(ratio - 1) for ratio in self.ratios(jobs, constants)]


def _summary(errors: Sequence[float]) -> Errors:
    middle, ninth = np.quantile(errors, [0.5, 0.9])
    return Errors(mean=float(np.mean(errors)), median=float(middle), p90=float(ninth))


def _lot(job: TrainingJob) -> bytes:
    """Draw a place for a job, by sizes that it will always have: a new key moves none."""
    one = job.layout
    degrees = one.data, one.tensor, one.pipeline, one.expert, one.context, one.zero
    sizes = job.shape.total_parameters, job.sequence_length, job.microbatches
    text = repr((*degrees, *sizes, job.layout.microbatch_sequences, job.layers_by_stage))
    return hashlib.sha256(text.encode()).digest()
