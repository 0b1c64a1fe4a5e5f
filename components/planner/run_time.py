"""Run time and cost: the steps of a whole run, its batch sizes and its interruptions."""

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
from components.planner.interruptions import HOUR, CheckpointTime, JobChain
from components.planner.job import TrainingJob
from components.planner.queues import most_chained, queue_of_run
from components.planner.software import SoftwareModel, SoftwareSpeed
from components.planner.time import StepPlan, StepTime, evaluation_seconds, plan_time

DAY = 24 * HOUR


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Consecutive steps of one batch size: number, tokens per step, tokens before them."""

    steps: int
    tokens_before: int
    tokens_per_step: int

    @property
    def tokens_after(self) -> int:
        return self.tokens_before + self.steps * self.tokens_per_step


def split_by_batch(recipe: Recipe) -> Iterator[Stretch]:
    """Split the steps of the recipe's phase at batch sizes, without the parent run's steps."""
    span = recipe.phase_span
    plateaus = [
        plateau
        for plateau in recipe.token_clock.plateaus
        if plateau.first_step in span.step_range
    ]
    ends = (*(plateau.first_step for plateau in plateaus[1:]), span.end_step)
    for plateau, end in zip(plateaus, ends, strict=True):
        if (first := max(plateau.first_step, recipe.first_step)) < end:
            yield Stretch(
                steps=end - first,
                tokens_before=recipe.token_clock.tokens_after(first),
                tokens_per_step=plateau.tokens_per_step,
            )


def count_crossings(run: tuple[Stretch, ...], every_tokens: int) -> int:
    """Count the steps that cross a multiple of ``every_tokens``, and the last step, once."""
    # A step longer than the interval crosses several multiples at once.
    count = sum(
        min(
            stretch.tokens_after // every_tokens - stretch.tokens_before // every_tokens,
            stretch.steps,
        )
        for stretch in run
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
    """Sum the seconds of all steps; ``full`` is the time of a step with all microbatches."""
    total = 0.0
    for stretch in run:
        # The recipe's rules only allow batches that divide into whole microbatches.
        count = job.microbatches * stretch.tokens_per_step // job.tokens_per_step
        changed = replace(job, microbatches=count)
        step = full if changed == job else plan_time(changed, hardware, speed)
        total += stretch.steps * step.total_seconds
    return total


@dataclass(frozen=True, kw_only=True)
class PhaseWork:
    """Work of one phase. ``evaluation`` is the seconds of one evaluation."""

    steps: int
    useful: float
    checkpoints: int
    evaluation: float
    evaluations: int


@dataclass(frozen=True, kw_only=True)
class UninterruptedRun:
    """Run without interruptions. Checkpoints have the same tensors in each phase."""

    phases: tuple[PhaseWork, ...]
    saving: CheckpointTime

    @property
    def num_steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    @property
    def step_seconds(self) -> float:
        """Seconds of all steps."""
        return sum(phase.useful for phase in self.phases)

    @property
    def num_checkpoints(self) -> int:
        return sum(phase.checkpoints for phase in self.phases)

    @property
    def num_evaluations(self) -> int:
        return sum(phase.evaluations for phase in self.phases)

    @property
    def evaluation_seconds(self) -> float:
        """Mean seconds of one evaluation."""
        if not self.phases[1:]:
            return self.phases[0].evaluation
        seconds = sum(phase.evaluations * phase.evaluation for phase in self.phases)
        return seconds / self.num_evaluations

    @property
    def total_seconds(self) -> float:
        return self._computing + self.num_checkpoints * self.stall_seconds

    @property
    def stall_seconds(self) -> float:
        """Mean seconds that a checkpoint stops the run, with the wait for an earlier write."""
        waited = self.saving.delay_seconds - self._computing / self.num_checkpoints
        return self.saving.stall_seconds + max(0.0, waited)

    @property
    def _computing(self) -> float:
        return self.step_seconds + self.num_evaluations * self.evaluation_seconds

    @property
    def checkpoint_interval(self) -> float:
        """Mean seconds from one checkpoint to the next."""
        return self.total_seconds / self.num_checkpoints


@dataclass(frozen=True, kw_only=True)
class RunTimeline:
    """Work of a run, its cost with interruptions, and the numbers that the profile lacks."""

    work: UninterruptedRun
    cost: CostEstimate
    missing: tuple[RecipeError, ...]


def plan_run_time(
    phases: Sequence[StepPlan], hardware: Hardware, software: SoftwareModel
) -> RunTimeline:
    """Predict the run time of the whole token budget from the step time of each phase."""
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
    hours, between = cluster.failures.node_hours_between, None
    failures = InterruptionCost(count=None, each_seconds=None)
    if hours is None:
        missing.append(_UNKNOWN_FAILURES)
    else:
        between = interruptions.mean_seconds_between(hours, cluster.nodes)
        expected = interruptions.expected_failures(
            work=work.total_seconds,
            interval=work.checkpoint_interval,
            # A failure also loses the checkpoint in progress: work since the previous one
            # repeats.
            restart=start_up + saving.read + saving.delay_seconds,
            between=between,
        )
        failures = expected or failures
    whole = work.total_seconds + failures.total_seconds
    chain = interruptions.chain_of_phases(
        [whole * part.useful / work.step_seconds for part in parts],
        queue_of_run(cluster),
        start_up=start_up,
        # The end of a job waits for the write.
        hand_over=saving.write_and_hash_seconds + saving.read,
    )
    checkpoints = _checkpoint_cost(work, first, between)
    if between is not None and failures.count is None:
        missing.append(_never_ends(between, checkpoints.best_every_tokens))
    if chain is None:
        missing.append(_too_short_jobs(start_up + saving.read + saving.write_and_hash_seconds))
    cost = _estimate_cost(work, checkpoints, failures, chain, start_up, cluster, hardware)
    return RunTimeline(work=work, cost=cost, missing=tuple(missing))


def _checkpoint_cost(
    work: UninterruptedRun, step: StepPlan, between: float | None
) -> CheckpointCost:
    """Summarize the checkpoints. The best interval requires the time between failures."""
    assert step.time is not None, "a step without a time has no run time"
    saving, best, best_tokens = work.saving, None, None
    if between is not None:
        # The interval is at least the duration of one write, because the next one would wait.
        best = interruptions.best_interval(stall=saving.stall_seconds, between=between)
        best = max(best, saving.write_and_hash_seconds)
        best_tokens = round(best * step.job.tokens_per_step / step.time.total_seconds)
    return CheckpointCost(
        count=work.num_checkpoints,
        bytes=saving.bytes,
        stall_seconds=work.stall_seconds,
        write_seconds=saving.write,
        hash_seconds=saving.hashing,
        read_seconds=saving.read,
        interval_seconds=work.checkpoint_interval,
        best_interval_seconds=best,
        best_every_tokens=best_tokens,
    )


def _estimate_cost(
    work: UninterruptedRun,
    checkpoints: CheckpointCost,
    failures: InterruptionCost,
    chain: JobChain | None,
    start_up: float,
    cluster: Cluster,
    hardware: Hardware,
) -> CostEstimate:
    """Return the cost. Energy is the devices' rated power times hours, as on BLOOM's card."""
    lost = failures.total_seconds
    total = work.total_seconds + lost + (chain.seconds if chain else 0.0)
    hours, watts = total / HOUR, hardware.device_watts
    energy = None if watts is None else hours * cluster.ranks * watts / 1_000
    unit, price = "node-h", 1.0
    if not isinstance(cluster.accounting, str):
        unit, price = cluster.accounting.unit, cluster.accounting.per_node_hour
    starts = (failures.count or 0.0) + (chain.jobs if chain else 1)
    return CostEstimate(
        device_hours=hours * cluster.ranks,
        node_hours=hours * cluster.nodes,
        site_units=hours * cluster.nodes * price,
        site_unit=unit,
        energy_kwh=energy,
        emissions=Emissions.from_energy(energy, **cluster.electricity.model_dump()),
        steps=work.num_steps,
        useful_days=work.step_seconds / DAY,
        checkpoint_days=work.num_checkpoints * work.stall_seconds / DAY,
        evaluation_days=work.num_evaluations * work.evaluation_seconds / DAY,
        failure_days=None if failures.count is None else lost / DAY,
        chain_days=chain.seconds / DAY if chain else None,
        days=total / DAY,
        waiting_days=starts * cluster.waiting_hours * HOUR / DAY,
        queue=chain.queue if chain else None,
        jobs=chain.jobs if chain and chain.queue else None,
        submissions=_submissions(chain, cluster),
        start_up_seconds=start_up,
        checkpoints=checkpoints,
        evaluations=InterruptionCost(
            count=work.num_evaluations, each_seconds=work.evaluation_seconds
        ),
        failures=failures,
    )


def _phase_work(
    phase: StepPlan, hardware: Hardware, speed: SoftwareSpeed, *, first: bool
) -> PhaseWork:
    recipe, job = phase.recipe, phase.job
    assert phase.time is not None
    parts, cadence = tuple(split_by_batch(recipe)), recipe.evaluation
    return PhaseWork(
        steps=sum(part.steps for part in parts),
        useful=steps_seconds(parts, job, phase.time, hardware, speed),
        checkpoints=count_crossings(parts, recipe.checkpoint.every_tokens),
        evaluation=evaluation_seconds(
            job,
            hardware,
            speed,
            sources=len(recipe.data.source_names),
            windows_per_source=cadence.max_windows_per_source,
        ),
        # A run has one more evaluation before its first step.
        evaluations=first + count_crossings(parts, cadence.every_tokens),
    )


def _submissions(chain: JobChain | None, cluster: Cluster) -> int | None:
    """Count the manual submissions: one per chain, or per job without chains."""
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
