"""Run time and cost: the steps of a whole run, its batch sizes, and everything it stops for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from components.config.recipe import Recipe
from components.config.schema.cluster import Hardware
from components.config.schema.sections import Cluster
from components.energy.emissions import Emissions
from components.errors import RecipeError
from components.planner import interruptions
from components.planner.cost import CheckpointCost, CostEstimate, InterruptionCost
from components.planner.interruptions import HOUR, CheckpointTime, FailureTime, JobChain
from components.planner.job import TrainingJob
from components.planner.queues import most_chained, queue_of_run
from components.planner.software import SoftwareModel, SoftwareSpeed
from components.planner.time import StepPlan, StepTime, evaluation_seconds, plan_time

DAY = 24 * HOUR


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Steps of one batch size in a row: how many, of how many tokens, after how many."""

    steps: int
    tokens_before: int
    tokens_per_step: int

    @property
    def tokens_after(self) -> int:
        return self.tokens_before + self.steps * self.tokens_per_step


def stretches(recipe: Recipe) -> Iterator[Stretch]:
    """Cut the steps of the recipe's phase at the borders of its ramp-up; else all are alike.

    Those that its parent has taken are left out.
    """
    span = recipe.span
    plateaus = [one for one in recipe.clock.plateaus if one.first_step in span.steps]
    ends = (*(plateau.first_step for plateau in plateaus[1:]), span.end_step)
    for plateau, end in zip(plateaus, ends, strict=True):
        if (first := max(plateau.first_step, recipe.first_step)) < end:
            yield Stretch(
                steps=end - first,
                tokens_before=recipe.clock.tokens_after(first),
                tokens_per_step=plateau.tokens_per_step,
            )


def crossings(run: tuple[Stretch, ...], every_tokens: int) -> int:
    """Count the steps that pass a multiple of ``every_tokens``, and the last one."""
    # A step longer than the cadence crosses several multiples at once.
    count = sum(
        min(one.tokens_after // every_tokens - one.tokens_before // every_tokens, one.steps)
        for one in run
    )
    end, last_step = run[-1].tokens_after, run[-1].tokens_per_step
    return count + (end // every_tokens == (end - last_step) // every_tokens)


def steps_seconds(
    run: tuple[Stretch, ...],
    job: TrainingJob,
    full: StepTime,
    hardware: Hardware,
    speed: SoftwareSpeed,
) -> float:
    """Add up all steps, each batch with as many microbatches as it has; ``full`` is known."""
    total = 0.0
    for stretch in run:
        # The recipe's rules let only batches through that divide into whole microbatches.
        count = job.microbatches * stretch.tokens_per_step // job.tokens_per_step
        changed = replace(job, microbatches=count)
        step = full if changed == job else plan_time(changed, hardware, speed)
        total += stretch.steps * step.total
    return total


@dataclass(frozen=True, kw_only=True)
class PhaseWork:
    """What one phase does; ``evaluation`` are the seconds of one of them."""

    steps: int
    useful: float
    checkpoints: int
    evaluation: float
    evaluations: int


@dataclass(frozen=True, kw_only=True)
class UninterruptedRun:
    """A run without interruptions; a checkpoint has the same tensors in each phase."""

    phases: tuple[PhaseWork, ...]
    saving: CheckpointTime

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    @property
    def useful(self) -> float:
        """Seconds of all steps."""
        return sum(phase.useful for phase in self.phases)

    @property
    def checkpoints(self) -> int:
        return sum(phase.checkpoints for phase in self.phases)

    @property
    def evaluations(self) -> int:
        return sum(phase.evaluations for phase in self.phases)

    @property
    def evaluation(self) -> float:
        """Mean seconds of one evaluation."""
        if not self.phases[1:]:
            return self.phases[0].evaluation
        seconds = sum(phase.evaluations * phase.evaluation for phase in self.phases)
        return seconds / self.evaluations

    @property
    def seconds(self) -> float:
        return self._computing + self.checkpoints * self.stall

    @property
    def stall(self) -> float:
        """Mean seconds of one checkpoint, with the wait for one that is still being written."""
        waited = self.saving.behind - self._computing / self.checkpoints
        return self.saving.stall + max(0.0, waited)

    @property
    def _computing(self) -> float:
        return self.useful + self.evaluations * self.evaluation

    @property
    def interval(self) -> float:
        """Mean seconds from one checkpoint to the next."""
        return self.seconds / self.checkpoints


@dataclass(frozen=True, kw_only=True)
class RunTimeline:
    """Work, its cost with everything that it stops for, and figures that nobody knows."""

    work: UninterruptedRun
    cost: CostEstimate
    missing: tuple[RecipeError, ...]


def plan_run_time(
    phases: Sequence[StepPlan], hardware: Hardware, software: SoftwareModel
) -> RunTimeline:
    """Predict the whole token budget from the time of a full step of each phase."""
    assert software.run is not None, "our own program's figures have them"
    first, run = phases[0], software.run
    recipe, cluster = first.recipe, first.recipe.cluster
    parts = [
        _phase_work(phase, hardware, software.speed, first=place == recipe.first_step == 0)
        for place, phase in enumerate(phases)
    ]
    asynchronous = recipe.checkpoint.asynchronous
    saving = interruptions.checkpoint_time(first.job, cluster, run, asynchronous=asynchronous)
    work = UninterruptedRun(phases=tuple(parts), saving=saving)
    start_up = run.start_up_seconds + run.start_up_rank_seconds * cluster.ranks
    missing = interruptions.missing_rates(cluster)
    hours, failures, between = cluster.failures.node_hours_between, None, None
    if hours is None:
        missing.append(_UNKNOWN_FAILURES)
    else:
        between = interruptions.mean_seconds_between(hours, cluster.nodes)
        failures = interruptions.expected_failures(
            work=work.seconds,
            interval=work.interval,
            # One that is not yet whole is lost too: the work since the one before it.
            restart=start_up + saving.read + saving.behind,
            between=between,
        )
    whole = work.seconds + (failures.total if failures else 0.0)
    chain = interruptions.chain_of_phases(
        [whole * part.useful / work.useful for part in parts],
        queue_of_run(cluster),
        start_up=start_up,
        write=saving.whole,  # the end of a job waits for it
        read=saving.read,
    )
    checkpoints = _checkpoint_cost(work, first, between)
    if between is not None and failures is None:
        missing.append(_never_ends(between, checkpoints.best_every_tokens))
    if chain is None:
        missing.append(_too_short_jobs(start_up + saving.read + saving.whole))
    cost = _estimate_cost(work, checkpoints, failures, chain, start_up, cluster, hardware)
    return RunTimeline(work=work, cost=cost, missing=tuple(missing))


def _checkpoint_cost(
    work: UninterruptedRun, step: StepPlan, between: float | None
) -> CheckpointCost:
    """Sum up the checkpoints; the best interval is known with the time between failures."""
    assert step.time is not None, "a step without a time has no run time"
    saving, best, best_tokens = work.saving, None, None
    if between is not None:
        # More often than one is written the next would only wait.
        best = interruptions.best_interval(stall=saving.stall, between=between)
        best = max(best, saving.whole)
        best_tokens = round(best * step.job.tokens_per_step / step.time.total)
    return CheckpointCost(
        count=work.checkpoints,
        bytes=saving.bytes,
        stall_seconds=work.stall,
        write_seconds=saving.write,
        hash_seconds=saving.hashing,
        read_seconds=saving.read,
        interval_seconds=work.interval,
        best_interval_seconds=best,
        best_every_tokens=best_tokens,
    )


def _estimate_cost(
    work: UninterruptedRun,
    checkpoints: CheckpointCost,
    failures: FailureTime | None,
    chain: JobChain | None,
    start_up: float,
    cluster: Cluster,
    hardware: Hardware,
) -> CostEstimate:
    """Multiply out; energy is the devices' rated power times hours, as BLOOM's card counts."""
    lost = failures.total if failures else 0.0
    total = work.seconds + lost + (chain.seconds if chain else 0.0)
    hours, watts = total / HOUR, hardware.device_watts
    energy = None if watts is None else hours * cluster.ranks * watts / 1_000
    unit, price = "node-h", 1.0
    if not isinstance(cluster.accounting, str):
        unit, price = cluster.accounting.unit, cluster.accounting.per_node_hour
    starts = (failures.count if failures else 0.0) + (chain.jobs if chain else 1)
    return CostEstimate(
        device_hours=hours * cluster.ranks,
        node_hours=hours * cluster.nodes,
        site_units=hours * cluster.nodes * price,
        site_unit=unit,
        energy_kwh=energy,
        emissions=Emissions.of(energy, **cluster.electricity.model_dump()),
        steps=work.steps,
        useful_days=work.useful / DAY,
        checkpoint_days=work.checkpoints * work.stall / DAY,
        evaluation_days=work.evaluations * work.evaluation / DAY,
        failure_days=failures.total / DAY if failures else None,
        chain_days=chain.seconds / DAY if chain else None,
        days=total / DAY,
        waiting_days=starts * cluster.waiting_hours * HOUR / DAY,
        queue=chain.queue if chain else None,
        jobs=chain.jobs if chain and chain.queue else None,
        submissions=_submissions(chain, cluster),
        start_up_seconds=start_up,
        checkpoints=checkpoints,
        evaluations=InterruptionCost(count=work.evaluations, each_seconds=work.evaluation),
        failures=InterruptionCost(
            count=failures.count if failures else None,
            each_seconds=failures.each if failures else None,
        ),
    )


def _phase_work(
    phase: StepPlan, hardware: Hardware, speed: SoftwareSpeed, *, first: bool
) -> PhaseWork:
    recipe, job = phase.recipe, phase.job
    assert phase.time is not None
    parts, cadence = tuple(stretches(recipe)), recipe.evaluation
    return PhaseWork(
        steps=sum(part.steps for part in parts),
        useful=steps_seconds(parts, job, phase.time, hardware, speed),
        checkpoints=crossings(parts, recipe.checkpoint.every_tokens),
        evaluation=evaluation_seconds(
            job,
            hardware,
            speed,
            sources=len(recipe.data.names),
            windows_per_source=cadence.max_windows_per_source,
        ),
        # One more before the first step of a run.
        evaluations=first + crossings(parts, cadence.every_tokens),
    )


def _submissions(chain: JobChain | None, cluster: Cluster) -> int | None:
    """Count how often a person submits: whole chains, or each job where there is no chain."""
    if chain is None or chain.queue is None:
        return None
    most = most_chained(cluster, queue_of_run(cluster))
    return 1 if most is None else ceil(chain.jobs / most)


_UNKNOWN_FAILURES = RecipeError(
    "cluster.failures.node_hours_between",
    "the profile does not say how often nodes fail; no failure is counted",
    "divide the node-hours of your jobs of some months by how many of them a node ended "
    "(sacct -s NODE_FAIL, or the site's own records)",
)


def _never_ends(between: float, best_tokens: int | None) -> RecipeError:
    return RecipeError(
        "checkpoint.every_tokens",
        f"a failure comes every {between / HOUR:.3g} h and costs longer than that: the run "
        "never ends, and no failure is counted",
        f"checkpoint.every_tokens={best_tokens} loses least",
    )


def _too_short_jobs(overhead: float) -> RecipeError:
    return RecipeError(
        "cluster.queues",
        f"starting, reading and writing a checkpoint take {overhead / HOUR:.3g} h, as long as "
        "a job may run; no chain of jobs is counted",
        "choose a number of nodes whose queue allows longer jobs",
    )
