"""The frozen, checked recipe: what ``run.py`` hands down and what the ranks load."""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import Field, PrivateAttr

from components.config.batch_ramp import BatchRamp
from components.config.derived import DerivedNumbers, FlopsPerToken, ParameterCounts
from components.config.model_spec.decoder import DecoderSpec
from components.config.part_nodes import read_decoder
from components.config.rank_groups import RankGroups
from components.config.schema import monitoring, sections, types
from components.config.schema.children import Child
from components.config.schema.data import DataSection
from components.config.schema.phases import ABSENT, EMPTY, RunPhase
from components.config.schema.sections import Stem
from components.config.schema.start import Start
from components.config.schema.types import FrozenMapping, KeyGroup, NamedNodes, Node
from components.config.stages import StagePlacement, stage_layers
from components.config.step_clock import Helping, PhaseSpan, StepClock

# What every run had before these sections is not written.
PLAIN = Field(exclude_if=lambda one: one == monitoring.TrainerOptions())
CURVES = Field(exclude_if=lambda one: types.thaw(one) == types.thaw(monitoring.CURVES))


class PhaseRecipes(dict[str, "Recipe"]):
    """The recipes of phases that were composed; they make two recipes no different."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PhaseRecipes)

    __hash__ = None


class Recipe(types.Section):
    """Everything that one run needs, with every number settled."""

    name: Annotated[Stem, KeyGroup.RECORD]
    why: Annotated[str, KeyGroup.RECORD]
    home: Annotated[Stem, KeyGroup.RECORD]
    works: Annotated[sections.Works, KeyGroup.RECORD]
    model: Annotated[
        Node,
        KeyGroup.MATHEMATICS,
        # Kernels for the same products; the last bits differ.
        types.OtherGroup(KeyGroup.LAYOUT, ("attention.backends.", "mlp.path.")),
    ]
    tokenizer: Annotated[Node, KeyGroup.MATHEMATICS]
    data: DataSection
    start: Annotated[Start | None, ABSENT] = Field(default=None, alias="from")
    budget: Annotated[sections.Budget, KeyGroup.MATHEMATICS]
    phases: Annotated[FrozenMapping[RunPhase], EMPTY] = Field(default_factory=dict)
    optimizer: Annotated[Node, KeyGroup.MATHEMATICS]
    schedule: Annotated[Node, KeyGroup.MATHEMATICS]
    precision: Annotated[sections.Precision, KeyGroup.MATHEMATICS]
    parallelism: sections.Parallelism
    checkpoint: Annotated[sections.Checkpoint, KeyGroup.MACHINE]
    evaluation: sections.EvaluationSection
    guard: Annotated[monitoring.GuardSection, KeyGroup.MACHINE]
    watchdog: Annotated[monitoring.Watchdog, KeyGroup.MACHINE]
    profiler: Annotated[monitoring.Profiler, KeyGroup.MACHINE]
    tracking: Annotated[monitoring.Tracking, KeyGroup.RECORD]
    trainer: Annotated[monitoring.TrainerOptions, PLAIN] = monitoring.TrainerOptions()
    callbacks: Annotated[NamedNodes, KeyGroup.MATHEMATICS, EMPTY] = Field(default_factory=dict)
    logger: Annotated[NamedNodes, KeyGroup.RECORD, CURVES] = Field(
        default_factory=lambda: monitoring.CURVES
    )
    cluster: Annotated[sections.Cluster, KeyGroup.MACHINE]
    scale: Annotated[sections.ScaleSection, KeyGroup.RECORD]
    published: Annotated[FrozenMapping[sections.PublishedFigure], KeyGroup.RECORD]
    assumed: Annotated[FrozenMapping[sections.AssumedValue], KeyGroup.RECORD]
    children: Annotated[FrozenMapping[Child], KeyGroup.RECORD, EMPTY] = Field(
        default_factory=dict
    )
    # Of one phase's recipe, see `config.phases`.
    _whole: "Recipe | None" = PrivateAttr(None)
    _phase: str = PrivateAttr("")
    _recipes_by_phase: "PhaseRecipes" = PrivateAttr(default_factory=lambda: PhaseRecipes())

    @property
    def whole(self) -> "Recipe":
        """The recipe of the whole run, where this is that of one of its phases."""
        return self._whole or self

    @property
    def span(self) -> PhaseSpan:
        """The steps of this phase; of a whole run those before its first one."""
        return next(span for span in self.clock.spans if span.name == self._phase)

    @cached_property
    def shape(self) -> DecoderSpec:
        """The specification of the model."""
        return read_decoder(types.thaw(self.model))

    @cached_property
    def ramp(self) -> BatchRamp:
        """Samples a step before any phase, as a function of the samples consumed before it."""
        length, ramp = self.budget.sequence_length, self.budget.ramp_up
        full = self.budget.global_batch_tokens // length
        if isinstance(ramp, str):
            return BatchRamp.constant(full)
        return BatchRamp(
            full_samples=full,
            start_samples=ramp.start_tokens // length,
            increment_samples=ramp.increment_tokens // length,
            ramp_samples=ramp.over_tokens // length,
        )

    @property
    def rank_groups(self) -> RankGroups:
        return RankGroups(self.parallelism, self.cluster.devices_per_node)

    @cached_property
    def clock(self) -> StepClock:
        """Which step of the whole run sees which samples and tokens."""
        run, total = self.whole, self.budget.total_tokens
        packed = run.data.packing == "best_fit"
        helpings = [Helping("", 0, run.budget.sequence_length, run.ramp, packed)]
        for name, phase in run.phases.items():
            length = phase.budget.sequence_length or run.budget.sequence_length
            batch = phase.budget.global_batch_tokens or run.budget.global_batch_tokens
            constant = BatchRamp.constant(batch // length)
            packed = (phase.data.packing or run.data.packing) == "best_fit"
            first = phase.first_token(total)
            helpings.append(Helping(name, first, length, constant, packed))
        return StepClock.of(sorted(helpings, key=lambda one: one.first_token), total)

    @cached_property
    def data_phases(self) -> tuple[tuple[int, str, Mapping[str, float]], ...]:
        """First sample, YAML path and shares of each phase; the first may be left to a rule."""
        found = [(0, "data.shares", self.data.shares)]
        for name, phase in self.data.phases.items():
            first = self.clock.sample_at(phase.first_token(self.budget.total_tokens))
            found.append((first, f"data.phases.{name}.shares", phase.shares))
        return tuple(sorted(found, key=lambda one: one[0]))

    @cached_property
    def first_step(self) -> int:
        """Steps that were taken before this run began: by the run that it goes on from."""
        start = self.whole.start
        if start is None or not start.goes_on or start.at_tokens is None:
            return 0
        return self.clock.steps_of(start.at_tokens)

    @property
    def total_samples(self) -> int:
        """Samples of the whole run, the overshoot of its last step too."""
        return self.clock.consumed_after(self.derived.steps)

    @cached_property
    def stages(self) -> tuple[range, ...]:
        """Layers of each pipeline stage."""
        stages, balance = self.placement.count, self.parallelism.stage_balance
        return stage_layers(self.shape.num_layers, stages, balance)

    @property
    def placement(self) -> StagePlacement:
        """Which pipeline rank has which stages."""
        return StagePlacement.of(self.parallelism)

    @cached_property
    def derived(self) -> DerivedNumbers:
        """Numbers that follow from the settled ones; computed here and nowhere else."""
        budget, degrees, shape = self.budget, self.parallelism, self.shape
        samples = budget.global_batch_tokens // budget.sequence_length
        ranks = degrees.data * degrees.expert
        return DerivedNumbers(
            parameters=ParameterCounts.of(shape),
            tokens_per_step=budget.global_batch_tokens,
            samples_per_step=samples,
            steps=self.clock.steps,
            ranks=self.cluster.ranks,
            microbatches_per_step=samples // (ranks * degrees.microbatch_sequences),
            layers_by_stage=tuple(len(layers) for layers in self.stages),
            flops_per_token=FlopsPerToken.of(shape, budget.sequence_length),
        )

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(self.model_dump(mode="json"), indent=1) + "\n", "utf-8")
