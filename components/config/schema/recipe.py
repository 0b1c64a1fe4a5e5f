"""The frozen, checked recipe: what ``run.py`` hands down and what the ranks load."""

import json
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, PrivateAttr, ValidationError

from components.config import batch_ramp
from components.config.key_groups import KeyGroup, fingerprint_of
from components.config.rules.check import check_rules
from components.config.schema import monitoring, sections, types
from components.config.schema.children import Child
from components.config.schema.data import DataSection
from components.config.schema.parent import Parent
from components.config.schema.phases import ABSENT, EMPTY, RunPhase
from components.config.schema.sections import Stem
from components.config.schema.types import FrozenMapping, Node
from components.config.shape import ModelShape, stage_layers
from components.config.stages import StagePlacement
from components.config.step_clock import Helping, PhaseSpan, StepClock
from components.config.suggestions import nearest, suggest, written_number
from components.config.targets import check_nodes
from components.errors import RecipeError
from components.json_file import read_mapping

S = TypeVar("S", bound=BaseModel)
# A step of pydantic's that is no key: which member of a union was tried.
TAGS = rf"{re.escape(types.SECTION.tag)}|{re.escape(types.WORD.tag)}"
MEMBER = re.compile(
    rf"{TAGS}|(constrained-)?(int|float|str|bool)|(literal|tuple|list|dict)\[.*|\[key\]"
)
QUOTED = re.compile(r"'([^']*)'")
# Ways out by pydantic's name of what is wrong.
FORMS = {
    "greater_than": "write a number above {gt:g}",
    "greater_than_equal": "write {ge:g} or more",
    "less_than": "write a number below {lt:g}",
    "less_than_equal": "write {le:g} or less",
    "int_type": "write a whole number, as 8 or 1_000_000",
    "float_type": "write a number, as 0.5 or 3e-4",
    "bool_type": "write {where}=true or {where}=false",
    **dict.fromkeys(
        ("dict_type", "mapping_type", "model_type"), "write keys and values below it"
    ),
    "word_or_section": "write none, or keys and values below it",
    "string_pattern_mismatch": "write a text of the form {pattern}",
    "tuple_type": "write a list, as {where}=[...]",
    "string_type": "write a text; one that looks like a number in quotes",
}


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
    parent: Annotated[Parent | None, ABSENT] = Field(default=None, alias="from")
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

    @property
    def whole(self) -> "Recipe":
        """The recipe of the whole run, where this is that of one of its phases."""
        return self._whole or self

    @property
    def span(self) -> PhaseSpan:
        """The steps of this phase; of a whole run those before its first one."""
        return next(span for span in self.clock.spans if span.name == self._phase)

    @cached_property
    def shape(self) -> ModelShape:
        return read_section(ModelShape, types.thaw(self.model), "model")

    @cached_property
    def ramp(self) -> batch_ramp.BatchRamp:
        """Samples a step before any phase, as a function of the samples consumed before it."""
        length, ramp = self.budget.sequence_length, self.budget.ramp_up
        full = self.budget.global_batch_tokens // length
        if isinstance(ramp, str):
            return batch_ramp.BatchRamp.constant(full)
        return batch_ramp.BatchRamp(
            full_samples=full,
            start_samples=ramp.start_tokens // length,
            increment_samples=ramp.increment_tokens // length,
            ramp_samples=ramp.over_tokens // length,
        )

    @cached_property
    def clock(self) -> StepClock:
        """Which step of the whole run sees which samples and tokens."""
        run, total = self.whole, self.budget.total_tokens
        packed = run.data.packing == "best_fit"
        helpings = [Helping("", 0, run.budget.sequence_length, run.ramp, packed)]
        for name, phase in run.phases.items():
            length = phase.budget.sequence_length or run.budget.sequence_length
            batch = phase.budget.global_batch_tokens or run.budget.global_batch_tokens
            constant = batch_ramp.BatchRamp.constant(batch // length)
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
        """Steps that were taken before this run began: by its parent, if it goes on."""
        parent = self.whole.parent
        if parent is None or not parent.goes_on or parent.at_tokens is None:
            return 0
        return self.clock.steps_of(parent.at_tokens)

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
    def derived(self) -> batch_ramp.DerivedNumbers:
        """Numbers that follow from the settled ones; computed here and nowhere else."""
        budget, degrees, shape = self.budget, self.parallelism, self.shape
        samples = budget.global_batch_tokens // budget.sequence_length
        ranks = degrees.data * degrees.expert
        return batch_ramp.DerivedNumbers(
            parameters=batch_ramp.ParameterCounts.of(shape),
            tokens_per_step=budget.global_batch_tokens,
            samples_per_step=samples,
            steps=self.clock.steps,
            ranks=self.cluster.ranks,
            microbatches_per_step=samples // (ranks * degrees.microbatch_sequences),
            layers_by_stage=tuple(len(layers) for layers in self.stages),
            flops_per_token=batch_ramp.FlopsPerToken.of(shape, budget.sequence_length),
        )

    def fingerprint(self) -> str:
        """Hash what changes the mathematics: not the layout, the machine or the folders."""
        return fingerprint_of(self.whole.model_dump(mode="json"), KeyGroup.MATHEMATICS)

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(self.model_dump(mode="json"), indent=1) + "\n", "utf-8")


def read_recipe(file: Path) -> Recipe:
    """Load the frozen recipe of a run folder, or raise a RecipeError that names the file."""
    tree = read_mapping(file)
    try:
        return check_recipe(tree)
    except RecipeError as error:
        raise RecipeError(f"{file}: {error.path}", error.problem, error.remedy) from None


def check_recipe(tree: Mapping[str, Any]) -> Recipe:
    """Check a settled tree: targets, fields, then rules; a RecipeError says what is wrong."""
    check_nodes(tree)
    # Which makes recipes of this kind.
    from components.config.parent import check_beginning
    from components.config.phases import check_phases, check_starts

    recipe = read_section(Recipe, tree, "")
    check_beginning(recipe)
    check_starts(recipe)
    check_rules(recipe)
    check_phases(recipe)
    return recipe


def read_section(kind: type[S], tree: Mapping[str, Any], path: str) -> S:
    """Validate one section; a RecipeError has every wrong field below ``path``, one a line."""
    try:
        return kind.model_validate(dict(tree))
    except ValidationError as failure:
        # A misspelt key first: what is missing beside it is that.
        errors = sorted(failure.errors(), key=lambda error: error["type"] != "extra_forbidden")
        found = [_told(error, kind, path) for error in errors]
    where, problem, _ = found[0]
    others = [f"{place}: {what}" for place, what, _ in found[1:]]
    ways = dict.fromkeys(way for _, _, way in found)
    raise RecipeError(where, "\n".join([problem, *others]), "; ".join(ways).replace("?;", "?"))


def _told(error: Any, kind: type[BaseModel], path: str) -> tuple[str, str, str]:
    """Say where something is wrong, what, and the way out."""
    steps = [step for step in error["loc"] if not MEMBER.fullmatch(str(step))]
    where = ".".join(map(str, [path, *steps] if path else steps))
    if error["type"] == "extra_forbidden":
        there = types.sections_at(kind, steps[:-1])
        known = [key for section in there for key in types.fields_of(section)]
        return where, "unknown key", suggest(where, known)
    if error["type"] == "missing":
        return where, "missing", f"set {where}=..."
    given, form = error["input"], error["type"]
    if types.WORD.tag in error["loc"]:
        form = "word_or_section"
    problem = f"{error['msg'][0].lower()}{error['msg'][1:]}, got {given!r}"
    return where, problem, _way(form, error.get("ctx", {}), given, where)


def _way(kind: str, rule: Mapping[str, Any], given: object, where: str) -> str:
    """Offer a value that would have been taken, or say of what form one is."""
    if kind == "literal_error":
        listed = rule["expected"]  # 'a', 'b' or 'c'; or 1, 2 or 3
        choices = QUOTED.findall(listed) or listed.replace(" or ", ", ").split(", ")
        return nearest(str(given), choices)
    whole = kind.startswith("int")
    if whole or kind.startswith("float"):
        number = written_number(given, whole=whole)
        if number is not None:
            return f"write {where}={number:_}"
    return FORMS.get(kind, "see docs/recipes.md").format(**rule, where=where)
