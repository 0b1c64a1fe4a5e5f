"""The frozen, checked recipe, which ``run.py`` passes on and ranks load."""

from collections.abc import Mapping
from functools import cached_property
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
from components.config.schema.types import ComponentNode, FrozenMapping, KeyGroup, NamedNodes
from components.config.stages import StagePlacement, stage_layers
from components.config.step_clock import PhaseBatch, PhaseSpan, TokenClock

# Defaults of sections that older recipes lack are not written.
PLAIN = Field(exclude_if=lambda options: options == monitoring.TrainerOptions())
CURVES = Field(
    exclude_if=lambda loggers: types.to_plain(loggers) == types.to_plain(monitoring.CURVES)
)


class PhaseRecipes(dict[str, "Recipe"]):
    """Cache of phase recipes; the cache does not affect the equality of recipes."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PhaseRecipes)

    __hash__ = None


class Recipe(types.Section):
    """Recipe of one run, with all numbers resolved."""

    name: Annotated[Stem, KeyGroup.RECORD]
    description: Annotated[str, KeyGroup.RECORD]
    reference_cluster: Annotated[Stem, KeyGroup.RECORD]
    citations: Annotated[sections.Works, KeyGroup.RECORD]
    model: Annotated[
        ComponentNode,
        KeyGroup.MATHEMATICS,
        # Other kernels for the same products; only the last bits differ.
        types.OtherGroup(
            KeyGroup.LAYOUT, ("attention.backends.", "mixers.*.scan_backends.", "mlp.path.")
        ),
    ]
    tokenizer: Annotated[ComponentNode, KeyGroup.MATHEMATICS]
    data: DataSection
    start: Annotated[Start | None, ABSENT] = Field(default=None, alias="from")
    budget: Annotated[sections.Budget, KeyGroup.MATHEMATICS]
    phases: Annotated[FrozenMapping[RunPhase], EMPTY] = Field(default_factory=dict)
    optimizer: Annotated[ComponentNode, KeyGroup.MATHEMATICS]
    schedule: Annotated[ComponentNode, KeyGroup.MATHEMATICS]
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
    # Set in the recipe of a phase, see `config.phases`.
    _whole: "Recipe | None" = PrivateAttr(None)
    _phase: str = PrivateAttr("")
    _recipes_by_phase: "PhaseRecipes" = PrivateAttr(default_factory=lambda: PhaseRecipes())

    @property
    def whole_run(self) -> "Recipe":
        """Recipe of the whole run; differs from ``self`` only for a phase."""
        return self._whole or self

    @property
    def phase_span(self) -> PhaseSpan:
        """Span of this phase; for a whole run, the span before its first phase."""
        return next(span for span in self.token_clock.spans if span.name == self._phase)

    @cached_property
    def decoder_spec(self) -> DecoderSpec:
        """The specification of the model."""
        return read_decoder(types.to_plain(self.model))

    @cached_property
    def batch_ramp(self) -> BatchRamp:
        """Batch ramp before the first phase: samples of a step by the samples consumed."""
        return BatchRamp.from_budget(self.budget)

    @property
    def rank_groups(self) -> RankGroups:
        return RankGroups(self.parallelism, self.cluster.devices_per_node)

    @cached_property
    def token_clock(self) -> TokenClock:
        """Clock of the whole run: samples and tokens of each step."""
        run, total = self.whole_run, self.budget.total_tokens
        packed = run.data.packing == "best_fit"
        helpings = [PhaseBatch("", 0, run.budget.sequence_length, run.batch_ramp, packed)]
        for name, phase in run.phases.items():
            length = phase.budget.sequence_length or run.budget.sequence_length
            batch = phase.budget.global_batch_tokens or run.budget.global_batch_tokens
            constant = BatchRamp.from_constant(batch // length)
            packed = (phase.data.packing or run.data.packing) == "best_fit"
            first = phase.first_token(total)
            helpings.append(PhaseBatch(name, first, length, constant, packed))
        return TokenClock.from_phase_batches(
            sorted(helpings, key=lambda helping: helping.first_token), total
        )

    @cached_property
    def data_phases(self) -> tuple[tuple[int, str, Mapping[str, float]], ...]:
        """First sample, YAML path and shares of each data phase; a rule may set the first."""
        phases = [(0, "data.shares", self.data.shares)]
        for name, phase in self.data.phases.items():
            first = self.token_clock.sample_at(phase.first_token(self.budget.total_tokens))
            phases.append((first, f"data.phases.{name}.shares", phase.shares))
        return tuple(sorted(phases, key=lambda row: row[0]))

    @cached_property
    def first_step(self) -> int:
        """Number of steps before this run, taken by the parent that it continues."""
        start = self.whole_run.start
        if start is None or not start.goes_on or start.at_tokens is None:
            return 0
        return self.token_clock.steps_of(start.at_tokens)

    @property
    def total_samples(self) -> int:
        """Samples of the whole run, including the overshoot of its last step."""
        return self.token_clock.consumed_after(self.derived_numbers.steps)

    @cached_property
    def stage_layers(self) -> tuple[range, ...]:
        """Layers of each pipeline stage."""
        stages, balance = self.stage_placement.num_stages, self.parallelism.stage_balance
        shape, length = self.decoder_spec, self.budget.sequence_length
        return stage_layers(shape.num_layers, stages, balance, shape.layer_costs(length))

    @property
    def stage_placement(self) -> StagePlacement:
        """Stages of each pipeline rank."""
        return StagePlacement.from_degrees(self.parallelism)

    @cached_property
    def derived_numbers(self) -> DerivedNumbers:
        """Derived numbers of the resolved recipe; no other code computes them."""
        budget, degrees, shape = self.budget, self.parallelism, self.decoder_spec
        samples = budget.global_batch_tokens // budget.sequence_length
        ranks = degrees.data * degrees.expert
        return DerivedNumbers(
            parameters=ParameterCounts.from_spec(shape),
            tokens_per_step=budget.global_batch_tokens,
            samples_per_step=samples,
            steps=self.token_clock.num_steps,
            ranks=self.cluster.ranks,
            microbatches_per_step=samples // (ranks * degrees.microbatch_sequences),
            layers_by_stage=tuple(len(layers) for layers in self.stage_layers),
            flops_per_token=FlopsPerToken.from_spec(shape, budget.sequence_length),
        )
