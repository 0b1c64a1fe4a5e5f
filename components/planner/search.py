"""The best layouts of a recipe on given nodes, by the plan's own memory and time.

All legal layouts are asked whether they fit; parts that layouts share are computed once. Of
those that fit, the passes alone are a bound from below on a step: the rest of the step is added
in the order of this bound, until no layout that is left can be among the best.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from heapq import nsmallest
from operator import attrgetter
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from components.config.recipe import Recipe
from components.config.schema.cluster import Hardware
from components.config.schema.sections import Parallelism
from components.config.stages import StagePlacement, stage_layers
from components.errors import RecipeError
from components.planner import memory, states
from components.planner.job import TrainingJob, job_of, layout_of, moments_of, number_bytes
from components.planner.layouts import SEARCHED, LayoutFamily, Layouts
from components.planner.memory import Moments, Verdict
from components.planner.software import software_of
from components.planner.states import States
from components.planner.time import StepTime, busy_seconds, passes_seconds, plan_time

# Of the released H100 layouts 8 of 50 tight ones ran out of memory, 11 of 1,049 others that
# fit: a tight layout has to be faster by a sixth before a run should be risked on it.
TIGHT_RISK = 7 / 6
BEST = 10
T = TypeVar("T")


@dataclass(frozen=True)
class LayoutChoice:
    """One layout with its fullest rank, its step, and what it is ranked by."""

    degrees: Parallelism
    peak: float
    verdict: Verdict
    time: StepTime

    @property
    def cost(self) -> float:
        """Seconds of a step, a tight layout's weighed with its risk."""
        return weighed(self.time.total, self.verdict)


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


class _Fitting(NamedTuple):
    bound: float
    job: TrainingJob
    busy: tuple[float, ...]
    degrees: Parallelism
    peak: float
    verdict: Verdict


def weighed(seconds: float, verdict: Verdict) -> float:
    """Weigh a step with the risk that its layout does not fit after all."""
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
        self._base = job_of(template.model_copy())
        self._samples = template.ramp.full_samples
        self._devices = template.cluster.devices_per_node
        self._known: dict[object, Any] = {}
        self.usable = memory.usable_bytes(self._hardware)
        self.nearest: tuple[Parallelism, float] | None = None

    def fitting(self, family: LayoutFamily) -> Iterator[_Fitting]:
        """Yield the layouts that fit; larger microbatches than one that does not are left."""
        base = self.job(family.degrees, 1)
        ranks, held = self._states(base)
        least = max(state.total for state, _ in held) + self._software.memory.base_bytes
        if least > self.usable:
            self._remember(family.degrees, family.sizes[0], least)
            return
        for size in family.sizes:
            job = self._with_size(base, size)
            passes = self._pass_bytes(job, ranks)
            peak = max(map(partial(self._peak, job), held, passes))
            if peak > self.usable:
                self._remember(family.degrees, size, peak)
                return
            verdict = memory.verdict_of(peak, self.usable)
            busy = self._busy_seconds(job)
            bound = weighed(sum(passes_seconds(job, busy)), verdict)
            yield _Fitting(bound, job, busy, family.degrees, peak, verdict)

    def best(
        self, found: list[_Fitting], holds: Callable[[Parallelism], bool]
    ) -> list[LayoutChoice]:
        """Add what the bound leaves out, until no other that ``holds`` can be among them."""
        best: list[LayoutChoice] = []
        for one in sorted(found, key=attrgetter("bound")):
            if len(best) >= BEST and one.bound > best[-1].cost:
                break
            size = {"microbatch_sequences": one.job.microbatch_sequences}
            degrees = one.degrees.model_copy(update=size)
            if not holds(degrees):
                continue
            time = plan_time(one.job, self._hardware, self._software.speed, one.busy)
            best = self._keep([*best, LayoutChoice(degrees, one.peak, one.verdict, time)])
        return best

    def _remember(self, degrees: Parallelism, size: int, peak: float) -> None:
        if self.nearest is None or peak < self.nearest[1]:
            chosen = degrees.model_copy(update={"microbatch_sequences": size})
            self.nearest = chosen, peak

    def job(self, degrees: Parallelism, size: int) -> TrainingJob:
        """Put a layout into the job of the recipe."""
        stages = StagePlacement.of(degrees).count
        cut = self._base.shape.num_layers, stages, degrees.stage_balance
        layers = self._once(cut, lambda: tuple(map(len, stage_layers(*cut))))
        depth = self._base.shape.mtp_depth
        layout = layout_of(
            degrees, layers=layers, devices_per_node=self._devices, mtp_depth=depth
        )
        numbers = self._once(
            ("numbers", degrees.zero),
            lambda: number_bytes(self._precision, degrees, self._moments),
        )
        job = replace(self._base, layout=layout, recompute=degrees.recompute, **numbers)
        return self._with_size(job, size)

    def _with_size(self, job: TrainingJob, size: int) -> TrainingJob:
        count = self._samples // (job.layout.data * job.layout.expert * size)
        return replace(job, microbatch_sequences=size, microbatches=count)

    def _once(self, key: object, compute: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = compute()
        found: T = self._known[key]
        return found

    def _states(self, job: TrainingJob) -> tuple[tuple[int, ...], list[tuple[States, float]]]:
        """Return the deciding ranks, and of each its state and what its update has."""
        layout, software = job.layout, self._software.memory
        cut = layout.tensor, layout.expert, layout.pipeline, layout.layers
        others = layout.recompute_every, layout.placement.style
        ranks = self._once(("ranks", cut, others), lambda: memory.deciding_ranks(layout))

        def held() -> list[tuple[States, float]]:
            parts = [states.rank_parameters(job, rank) for rank in ranks]
            return [
                (states.states(job, x), sum(states.update_bytes(job, x, software)))
                for x in parts
            ]

        key = "states", cut, others, layout.context, layout.data_shard, layout.zero
        return ranks, self._once(key, held)

    def _peak(self, job: TrainingJob, held: tuple[States, float], passes: float) -> float:
        software, (state, update) = self._software.memory, held
        earlier = states.earlier_gradients(job, state, software)
        moments = Moments(passes=passes + earlier, update=update)
        return moments.peak(state, software.base_bytes)

    def _pass_bytes(self, job: TrainingJob, ranks: tuple[int, ...]) -> tuple[float, ...]:
        # 1F1B keeps as many microbatches as it has ranks, however many there are.
        schedule, software = job.layout.schedule, self._software.memory
        count = 0 if schedule == "1f1b" else job.microbatches
        key = "passes", schedule, count, job.layout.zero, *_shared_key(job)
        return self._once(
            key, lambda: tuple(memory.pass_bytes(job, one, software) for one in ranks)
        )

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
        *(layout.sequence_parallel, layout.stages_per_rank, layout.placement.style),
        *(job.microbatch_sequences, job.recompute, layout.recompute_every),
    )
