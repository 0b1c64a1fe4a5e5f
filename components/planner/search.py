"""Layout search: the fastest layouts of a recipe on given nodes, by the plan's memory and time.

All legal layouts are checked against the device memory. The time of the passes is a lower bound
of a step; steps are computed in its order until no other layout can be among the best.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from heapq import nsmallest
from operator import attrgetter
from time import perf_counter
from typing import Any, TypeVar

from components.config.recipe import Recipe
from components.config.schema.cluster import Hardware
from components.config.schema.sections import Parallelism
from components.config.stages import StagePlacement, splits_backward, stage_layers
from components.errors import RecipeError
from components.planner import memory, states
from components.planner.job import TrainingJob, job_from_recipe, moments_of, number_bytes
from components.planner.layouts import SEARCHED, LayoutFamily, Layouts
from components.planner.memory import Verdict
from components.planner.passes import busy_seconds
from components.planner.software import software_of
from components.planner.time import passes_seconds, plan_time

# 8 of 50 tight H100 layouts ran out of memory, and 11 of 1,049 others that fit. A tight layout
# must be faster by a sixth to be worth this risk.
TIGHT_RISK = 7 / 6
BEST = 10
T = TypeVar("T")


@dataclass(frozen=True)
class LayoutChoice:
    """One layout with its fullest rank's peak and its step time, at first of passes only."""

    job: TrainingJob
    peak: float
    verdict: Verdict
    busy: tuple[float, ...]
    seconds: float

    @property
    def layout_degrees(self) -> Parallelism:
        return self.job.layout

    @property
    def weighted_seconds(self) -> float:
        """Return the seconds of a step, with a penalty for a tight layout."""
        return penalise_tight(self.seconds, self.verdict)


@dataclass(frozen=True, kw_only=True)
class LayoutSearch:
    """Search result: counts, seconds, best layouts; ``nearest`` needs the least memory."""

    ranks: int
    considered: int
    legal: int
    fitting: int
    seconds: float
    usable_bytes: int
    best: tuple[LayoutChoice, ...]
    nearest: tuple[Parallelism, float] | None


def describe_layout(degrees: Parallelism) -> str:
    """Describe a layout in one line: the axes that it uses, then its settings."""
    used = [f"{axis} {degree}" for axis, degree in degrees.used_axes.items()]
    recompute, stages = degrees.recompute, degrees.stages_per_rank
    text = f"{' x '.join(used) or 'one rank'}, ZeRO {degrees.zero}"
    text += f", microbatches of {degrees.microbatch_sequences}"
    if degrees.pipeline > 1:
        text += f", {degrees.schedule}" + (f" with {stages} stages a rank" * (stages > 1))
    if recompute != "none":
        parts = (recompute,) if isinstance(recompute, str) else recompute
        text += f", recomputes {' and '.join(parts).replace('full', 'all')}"
        every = degrees.recompute_every
        text += f" of every {every} layers" * (every > 1)
    return text


def penalise_tight(seconds: float, verdict: Verdict) -> float:
    """Return a step's seconds, increased for the out-of-memory risk of a tight layout."""
    return seconds * (TIGHT_RISK if verdict == "tight" else 1.0)


def hardware_of(template: Recipe) -> Hardware:
    """Return the hardware profile of the cluster; RecipeError if it has none."""
    hardware = template.cluster.hardware
    if isinstance(hardware, str):
        raise RecipeError(
            "parallelism",
            f"auto, but cluster {template.cluster.name!r} has no measured hardware profile, "
            "so no layout can be priced",
            f"leave parallelism=auto out, or search on a cluster with a profile: "
            f"cluster={template.reference_cluster}",
        )
    return hardware


def search_layouts(template: Recipe, *, ranks: int, fixed: frozenset[str]) -> LayoutSearch:
    """Rank the legal layouts of ``template`` on ``ranks``. Keys in ``fixed`` keep their values.

    If no layout is legal or fits, ``best`` is empty.
    """
    start = perf_counter()
    layouts = Layouts(template, ranks=ranks, fixed=fixed)
    prices = Prices(template)
    fitting = [
        choice
        for family in layouts.iterate_families()
        for choice in prices.iterate_fitting(family)
    ]
    best = tuple(prices.select_best(fitting, layouts.holds_in_phases))
    return LayoutSearch(
        ranks=ranks,
        considered=layouts.considered,
        legal=layouts.legal,
        fitting=len(fitting),
        seconds=perf_counter() - start,
        usable_bytes=prices.usable,
        best=best,
        nearest=prices.nearest,
    )


class Prices:
    """Cache of memory and time of one recipe's layouts. Shared parts are computed once."""

    def __init__(self, template: Recipe) -> None:
        self._hardware = hardware_of(template)
        self._software, _ = software_of(template.cluster)
        self._base_layout, self._precision = template.parallelism, template.precision
        self._moments = moments_of(template.optimizer)
        # A copy, because the template must not cache values derived from its own degrees.
        self._base = job_from_recipe(template.model_copy())
        self._samples = template.batch_ramp.full_samples
        self._known: dict[object, Any] = {}
        self.usable = memory.usable_bytes(self._hardware)
        self.nearest: tuple[Parallelism, float] | None = None

    def iterate_fitting(self, family: LayoutFamily) -> Iterator[LayoutChoice]:
        """Yield the layouts that fit. Stop at the first microbatch size that does not fit."""
        base = self.build_job(family.degrees, family.sizes[0])
        least = self._least(base)
        if least > self.usable:
            self._remember(base, least)
            return
        for size in family.sizes:
            job = self._with_size(base, size)
            peak = self._peak(job)
            if peak > self.usable:
                self._remember(job, peak)
                return
            verdict = memory.verdict_of(peak, self.usable)
            busy = self._busy_seconds(job)
            yield LayoutChoice(job, peak, verdict, busy, sum(passes_seconds(job, busy)))

    def select_best(
        self, candidates: list[LayoutChoice], is_legal: Callable[[Parallelism], bool]
    ) -> list[LayoutChoice]:
        """Time whole steps until no remaining legal layout can be among the best."""
        best: list[LayoutChoice] = []
        for choice in sorted(candidates, key=attrgetter("weighted_seconds")):
            if len(best) >= BEST and choice.weighted_seconds > best[-1].weighted_seconds:
                break
            if is_legal(choice.layout_degrees):
                speed = self._software.speed
                step = plan_time(choice.job, self._hardware, speed, choice.busy)
                best = self._keep([*best, replace(choice, seconds=step.total_seconds)])
        return best

    def _remember(self, job: TrainingJob, peak: float) -> None:
        if self.nearest is None or peak < self.nearest[1]:
            self.nearest = job.layout, peak

    def build_job(self, degrees: Parallelism, size: int) -> TrainingJob:
        """Return the recipe's job with this layout."""
        stages = StagePlacement.from_degrees(degrees).num_stages
        shape, length = self._base.shape, self._base.sequence_length
        costs = self._once("costs", lambda: shape.layer_costs(length))
        cut = shape.num_layers, stages, degrees.stage_balance, costs
        numbers = self._once(
            ("numbers", degrees.zero),
            lambda: number_bytes(self._precision, degrees, self._moments),
        )
        job = replace(
            self._base,
            layout=degrees,
            layers_by_stage=self._once(cut, lambda: tuple(map(len, stage_layers(*cut)))),
            head_stage=stages - 1,
            splits_backward=splits_backward(degrees),
            **numbers,
        )
        return self._with_size(job, size)

    def _with_size(self, job: TrainingJob, size: int) -> TrainingJob:
        layout = job.layout.model_copy(update={"microbatch_sequences": size})
        return replace(
            job, layout=layout, microbatches=self._samples // (layout.num_replicas * size)
        )

    def _once(self, key: object, compute: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = compute()
        value: T = self._known[key]
        return value

    def _least(self, job: TrainingJob) -> float:
        """Return the bytes of the fullest rank before any pass."""
        layout = job.layout
        key = (
            *("states", layout.tensor, layout.expert, layout.pipeline, layout.context),
            *(job.layers_by_stage, layout.recompute_every, job.stage_placement.style),
            *(layout.data_shard, layout.zero),
        )

        def stored_bytes() -> float:
            ranks = memory.deciding_ranks(job)
            parts = (states.rank_parameters(job, rank) for rank in ranks)
            most = max(states.compute_states(job, part).total_bytes for part in parts)
            return most + self._software.memory.base_bytes

        return self._once(key, stored_bytes)

    def _peak(self, job: TrainingJob) -> float:
        # 1F1B keeps one microbatch per rank, however many microbatches there are.
        layout, software = job.layout, self._software.memory
        count = min(job.microbatches, 2) if layout.schedule == "1f1b" else job.microbatches
        key = "peak", layout.schedule, count, layout.zero, layout.data_shard, *_shared_key(job)

        def peak_bytes() -> float:
            ranks = memory.deciding_ranks(job)
            return max(memory.rank_memory(job, rank, software).peak_bytes for rank in ranks)

        return self._once(key, peak_bytes)

    def _busy_seconds(self, job: TrainingJob) -> tuple[float, ...]:
        key = "busy", job.layout.data, *_shared_key(job)
        speed = self._software.speed
        return self._once(key, lambda: tuple(busy_seconds(job, self._hardware, speed)))

    def _keep(self, choices: list[LayoutChoice]) -> list[LayoutChoice]:
        """Sort by cost. Of layouts with equal cost, keep the most similar to the recipe's."""

        def count_changes(choice: LayoutChoice) -> tuple[int, float]:
            base, layout = self._base_layout, choice.layout_degrees
            changed = sum(getattr(base, key) != getattr(layout, key) for key in SEARCHED)
            return changed, choice.peak

        different: dict[float, LayoutChoice] = {}
        for choice in sorted(choices, key=count_changes):
            different.setdefault(round(choice.weighted_seconds, 9), choice)
        return nsmallest(BEST, different.values(), key=lambda choice: choice.weighted_seconds)


def _shared_key(job: TrainingJob) -> tuple[object, ...]:
    """Return the values that one microbatch's passes through one rank depend on."""
    layout, placement = job.layout, job.stage_placement
    return (
        *(layout.tensor, layout.pipeline, layout.expert, layout.context),
        *(layout.sequence_parallel, placement.stages_per_rank, placement.style),
        *(layout.microbatch_sequences, layout.recompute, layout.recompute_every),
    )
