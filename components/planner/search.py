"""The best layouts of a recipe on given nodes, by the plan's own memory and time.

All legal layouts are asked whether they fit; parts that layouts share are computed once. Of
those that fit, the passes alone are a bound from below on a step: the rest of the step is added
in the order of this bound, until no layout that is left can be among the best.
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
from components.planner.job import (
    TrainingJob,
    job_from_recipe,
    moments_of,
    number_bytes,
)
from components.planner.layouts import SEARCHED, LayoutFamily, Layouts
from components.planner.memory import Verdict
from components.planner.passes import busy_seconds
from components.planner.software import software_of
from components.planner.time import passes_seconds, plan_time

# Of the released H100 layouts 8 of 50 tight ones ran out of memory, 11 of 1,049 others that
# fit: a tight layout has to be faster by a sixth before a run should be risked on it.
TIGHT_RISK = 7 / 6
BEST = 10
T = TypeVar("T")


@dataclass(frozen=True)
class LayoutChoice:
    """One layout with its fullest rank, and the seconds of its step, at first of its passes."""

    job: TrainingJob
    peak: float
    verdict: Verdict
    busy: tuple[float, ...]
    seconds: float

    @property
    def degrees(self) -> Parallelism:
        return self.job.layout

    @property
    def cost(self) -> float:
        """Seconds of a step, with a penalty for a tight layout."""
        return penalise_tight(self.seconds, self.verdict)


@dataclass(frozen=True, kw_only=True)
class LayoutSearch:
    """What was looked at, in how many seconds, and the best, best first.

    ``nearest`` needs the least memory of all legal layouts.
    """

    ranks: int
    considered: int
    legal: int
    fitting: int
    seconds: float
    usable_bytes: int
    best: tuple[LayoutChoice, ...]
    nearest: tuple[Parallelism, float] | None


def describe(degrees: Parallelism) -> str:
    """Write a layout in a line: the axes that it uses, then the settings that it has."""
    used = [f"{axis} {degree}" for axis, degree in degrees.used_axes.items()]
    again, stages = degrees.recompute, degrees.stages_per_rank
    text = f"{' x '.join(used) or 'one rank'}, ZeRO {degrees.zero}"
    text += f", microbatches of {degrees.microbatch_sequences}"
    if degrees.pipeline > 1:
        text += f", {degrees.schedule}" + (f" with {stages} stages a rank" * (stages > 1))
    if again != "none":
        text += f", recomputes {recomputed(degrees)}"
    return text


def recomputed(degrees: Parallelism) -> str:
    """Write what is recomputed, and of how many layers."""
    parts, every = degrees.recompute, degrees.recompute_every
    words = {"full": "all"}.get(parts, parts) if isinstance(parts, str) else " and ".join(parts)
    return words if every == 1 else f"{words} of every {every} layers"


def penalise_tight(seconds: float, verdict: Verdict) -> float:
    """Add the risk that a tight layout runs out of memory to the seconds of a step."""
    return seconds * (TIGHT_RISK if verdict == "tight" else 1.0)


def hardware_of(template: Recipe) -> Hardware:
    """Return the physical profile.

    Raises:
        RecipeError: the cluster has none.
    """
    hardware = template.cluster.hardware
    if isinstance(hardware, str):
        raise RecipeError(
            "parallelism",
            f"auto, but nobody has measured the cluster {template.cluster.name!r}: no layout "
            "of it has a price",
            f"leave parallelism=auto out, or search on a cluster with a profile: "
            f"cluster={template.home}",
        )
    return hardware


def search_layouts(template: Recipe, *, ranks: int, fixed: frozenset[str]) -> LayoutSearch:
    """Rank the legal layouts of ``template`` on ``ranks``; keys in ``fixed`` keep their values.

    Nothing is refused where no layout is legal or fits: ``best`` is empty then.

    Raises:
        RecipeError: the cluster has no profile, or it lacks what a time needs.
    """
    begun = perf_counter()
    layouts = Layouts(template, ranks=ranks, fixed=fixed)
    prices = Prices(template)
    found = [one for family in layouts.families() for one in prices.fitting(family)]
    best = tuple(prices.best(found, layouts.holds_in_phases))
    return LayoutSearch(
        ranks=ranks,
        considered=layouts.considered,
        legal=layouts.legal,
        fitting=len(found),
        seconds=perf_counter() - begun,
        usable_bytes=prices.usable,
        best=best,
        nearest=prices.nearest,
    )


class Prices:
    """Memory and time of layouts of one recipe, each shared part computed once."""

    def __init__(self, template: Recipe) -> None:
        self._hardware = hardware_of(template)
        self._software, _ = software_of(template.cluster)
        self._kept, self._precision = template.parallelism, template.precision
        self._moments = moments_of(template.optimizer)
        # A copy: the template must not remember what follows from its own degrees.
        self._base = job_from_recipe(template.model_copy())
        self._samples = template.ramp.full_samples
        self._known: dict[object, Any] = {}
        self.usable = memory.usable_bytes(self._hardware)
        self.nearest: tuple[Parallelism, float] | None = None

    def fitting(self, family: LayoutFamily) -> Iterator[LayoutChoice]:
        """Yield the layouts that fit; stop at the first microbatch size that does not."""
        base = self.job(family.degrees, family.sizes[0])
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

    def best(
        self, found: list[LayoutChoice], is_legal: Callable[[Parallelism], bool]
    ) -> list[LayoutChoice]:
        """Time the rest of the step, until no other legal layout can be among the best."""
        best: list[LayoutChoice] = []
        for choice in sorted(found, key=attrgetter("cost")):
            if len(best) >= BEST and choice.cost > best[-1].cost:
                break
            if is_legal(choice.degrees):
                speed = self._software.speed
                step = plan_time(choice.job, self._hardware, speed, choice.busy)
                best = self._keep([*best, replace(choice, seconds=step.total)])
        return best

    def _remember(self, job: TrainingJob, peak: float) -> None:
        if self.nearest is None or peak < self.nearest[1]:
            self.nearest = job.layout, peak

    def job(self, degrees: Parallelism, size: int) -> TrainingJob:
        """Put a layout into the job of the recipe."""
        stages = StagePlacement.of(degrees).count
        cut = self._base.shape.num_layers, stages, degrees.stage_balance
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
            job, layout=layout, microbatches=self._samples // (layout.replicas * size)
        )

    def _once(self, key: object, compute: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = compute()
        found: T = self._known[key]
        return found

    def _least(self, job: TrainingJob) -> float:
        """Return what the fullest rank holds before any pass."""
        layout = job.layout
        key = (
            *("states", layout.tensor, layout.expert, layout.pipeline, layout.context),
            *(job.layers_by_stage, layout.recompute_every, job.placement.style),
            *(layout.data_shard, layout.zero),
        )

        def held() -> float:
            ranks = memory.deciding_ranks(job)
            parts = (states.rank_parameters(job, rank) for rank in ranks)
            most = max(states.states(job, part).total for part in parts)
            return most + self._software.memory.base_bytes

        return self._once(key, held)

    def _peak(self, job: TrainingJob) -> float:
        # 1F1B keeps as many microbatches as it has ranks, however many there are.
        layout, software = job.layout, self._software.memory
        count = min(job.microbatches, 2) if layout.schedule == "1f1b" else job.microbatches
        key = "peak", layout.schedule, count, layout.zero, layout.data_shard, *_shared_key(job)

        def peak() -> float:
            ranks = memory.deciding_ranks(job)
            return max(memory.rank_memory(job, rank, software).peak for rank in ranks)

        return self._once(key, peak)

    def _busy_seconds(self, job: TrainingJob) -> tuple[float, ...]:
        key = "busy", job.layout.data, *_shared_key(job)
        speed = self._software.speed
        return self._once(key, lambda: tuple(busy_seconds(job, self._hardware, speed)))

    def _keep(self, choices: list[LayoutChoice]) -> list[LayoutChoice]:
        """Sort; of layouts that cost the same, keep the one that is most like the recipe's."""

        def strangeness(choice: LayoutChoice) -> tuple[int, float]:
            before, after = self._kept, choice.degrees
            changed = [key for key in SEARCHED if getattr(before, key) != getattr(after, key)]
            return len(changed), choice.peak

        different: dict[float, LayoutChoice] = {}
        for choice in sorted(choices, key=strangeness):
            different.setdefault(round(choice.cost, 9), choice)
        return nsmallest(BEST, different.values(), key=lambda one: one.cost)


def _shared_key(job: TrainingJob) -> tuple[object, ...]:
    """Name what one microbatch's passes through one rank depend on, whatever the data ranks."""
    layout = job.layout
    return (
        *(layout.tensor, layout.pipeline, layout.expert, layout.context),
        *(layout.sequence_parallel, job.placement.stages_per_rank, job.placement.style),
        *(job.layout.microbatch_sequences, job.layout.recompute, layout.recompute_every),
    )
