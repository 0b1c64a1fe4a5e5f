"""The frozen, checked recipe: what ``run.py`` hands down and what the ranks load."""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from components.config.batch_ramp import (
    BatchRamp,
    DerivedNumbers,
    FlopsPerToken,
    ParameterCounts,
)
from components.config.key_groups import KeyGroup, fingerprint_of
from components.config.rules.check import check_rules
from components.config.schema.data import DataSection
from components.config.schema.guards import GuardSection, Watchdog
from components.config.schema.recording import Profiler, Tracking
from components.config.schema.sections import (
    AssumedValue,
    Budget,
    Checkpoint,
    Cluster,
    EvaluationSection,
    Parallelism,
    Precision,
    PublishedFigure,
    ScaleSection,
    Stem,
    Works,
)
from components.config.schema.types import FrozenMapping, Node, Section, of_what_was_meant, thaw
from components.config.shape import ModelShape
from components.config.stages import stage_layers
from components.config.targets import check_nodes, nearest
from components.errors import RecipeError
from components.json_file import read_mapping

S = TypeVar("S", bound=BaseModel)


class Recipe(Section):
    """Everything that one run needs, with every number settled."""

    name: Stem
    why: str
    home: Stem
    works: Works
    model: Node
    tokenizer: Node
    data: DataSection
    budget: Budget
    optimizer: Node
    schedule: Node
    precision: Precision
    parallelism: Parallelism
    checkpoint: Checkpoint
    evaluation: EvaluationSection
    guard: GuardSection
    watchdog: Watchdog
    profiler: Profiler
    tracking: Tracking
    cluster: Cluster
    scale: ScaleSection
    published: FrozenMapping[PublishedFigure]
    assumed: FrozenMapping[AssumedValue]

    @cached_property
    def shape(self) -> ModelShape:
        return read_section(ModelShape, thaw(self.model), "model")

    @cached_property
    def ramp(self) -> BatchRamp:
        """Samples a step, as a function of the samples consumed before it."""
        budget = self.budget
        full = budget.global_batch_tokens // budget.sequence_length
        if isinstance(budget.ramp_up, str):
            return BatchRamp.constant(full)
        return BatchRamp(
            full_samples=full,
            start_samples=budget.ramp_up.start_tokens // budget.sequence_length,
            increment_samples=budget.ramp_up.increment_tokens // budget.sequence_length,
            ramp_samples=budget.ramp_up.over_tokens // budget.sequence_length,
        )

    @cached_property
    def data_phases(self) -> tuple[tuple[int, str, Mapping[str, float]], ...]:
        """First sample, YAML path and shares of each phase; the first may be left to a rule."""
        budget, named = self.budget, self.data.phases
        first = (0, "data.shares", self.data.shares)
        later = [
            (
                phase.first_sample(
                    total_tokens=budget.total_tokens, sequence_length=budget.sequence_length
                ),
                f"data.phases.{name}.shares",
                phase.shares,
            )
            for name, phase in named.items()
        ]
        return (first, *sorted(later, key=lambda phase: phase[0]))

    @property
    def total_samples(self) -> int:
        """Samples of the whole run, the overshoot of its last step too."""
        return self.ramp.consumed_after(self.derived.steps)

    @cached_property
    def stages(self) -> tuple[range, ...]:
        """Layers of each pipeline stage; stage s is on pipeline rank s % pipeline."""
        degrees = self.parallelism
        stages = degrees.pipeline * degrees.stages_per_rank if degrees.pipeline > 1 else 1
        return stage_layers(self.shape.num_layers, stages, degrees.stage_balance)

    @cached_property
    def derived(self) -> DerivedNumbers:
        """Numbers that follow from the settled ones; computed here and nowhere else."""
        budget, degrees = self.budget, self.parallelism
        samples = budget.global_batch_tokens // budget.sequence_length
        return DerivedNumbers(
            parameters=ParameterCounts.of(self.shape),
            tokens_per_step=budget.global_batch_tokens,
            samples_per_step=samples,
            steps=self.ramp.steps(-(-budget.total_tokens // budget.sequence_length)),
            ranks=self.cluster.ranks,
            microbatches_per_step=samples
            // (degrees.data * degrees.expert * degrees.microbatch_sequences),
            layers_by_stage=tuple(len(layers) for layers in self.stages),
            flops_per_token=FlopsPerToken.of(self.shape, budget.sequence_length),
        )

    def fingerprint(self) -> str:
        """Hash what changes the mathematics: not the layout, the machine or the folders."""
        return fingerprint_of(self.model_dump(mode="json"), KeyGroup.MATHEMATICS)

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(self.model_dump(mode="json"), indent=1) + "\n", "utf-8")


def read_recipe(file: Path) -> Recipe:
    """Load the frozen recipe of a run folder.

    Raises:
        RecipeError: the file is missing, no JSON, or no valid recipe.
    """
    tree = read_mapping(file)
    try:
        return check_recipe(tree)
    except RecipeError as error:
        raise RecipeError(f"{file}: {error.path}", error.problem, error.remedy) from None


def check_recipe(tree: Mapping[str, Any]) -> Recipe:
    """Turn a settled tree into a :class:`Recipe`: targets first, then fields, then rules.

    Raises:
        RecipeError: what is wrong, with its YAML path; of the fields, all that are wrong.
    """
    check_nodes(tree)
    recipe = read_section(Recipe, tree, "")
    check_rules(recipe)
    return recipe


def read_section(kind: type[S], tree: Mapping[str, Any], path: str) -> S:
    """Validate one section; pydantic's errors become ours, with paths below ``path``.

    Raises:
        RecipeError: every field that is missing, unknown or out of range, one a line.
    """
    try:
        return kind.model_validate(dict(tree))
    except ValidationError as failure:
        errors = of_what_was_meant(failure.errors())
        lines = [_sentence(error, kind, path) for error in errors]
    first, _, rest = lines[0].partition(": ")
    raise RecipeError(first, "\n".join([rest, *lines[1:]]))


def _sentence(error: Any, kind: type[BaseModel], path: str) -> str:
    location = ".".join(str(step) for step in error["loc"])
    where = f"{path}.{location}" if path else location
    if error["type"] == "extra_forbidden":
        known = _fields(kind, error["loc"][:-1])
        return f"{where}: unknown key; {nearest(str(error['loc'][-1]), known)}"
    if error["type"] == "missing":
        return f"{where}: missing; set {where}=..."
    given = error["input"]
    whole = error["type"] == "int_type" and isinstance(given, float) and given.is_integer()
    way = f"; write {int(given):_}" if whole else ""
    return f"{where}: {error['msg'][0].lower()}{error['msg'][1:]}, got {given!r}{way}"


def _fields(kind: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """Names of the fields of the section that ``location`` leads to."""
    here: list[Any] = [kind]
    for step in location:
        here = [one for annotation in here for one in _inside(annotation, step)]
    return [name for one in here if _is_section(one) for name in one.model_fields]


def _inside(annotation: Any, step: Any) -> list[Any]:
    """Types one step down: of a section's field, or of what a mapping or a list holds."""
    if _is_section(annotation):
        field = annotation.model_fields.get(step)
        return _choices(field.annotation) if field else []
    held = [one for one in get_args(annotation) if one is not Ellipsis]
    return _choices(held[-1]) if held else []


def _choices(annotation: Any) -> list[Any]:
    """Types that ``A | B`` stands for."""
    if get_origin(annotation) is Annotated:
        return _choices(get_args(annotation)[0])
    if get_origin(annotation) in {Union, UnionType}:
        return [one for choice in get_args(annotation) for one in _choices(choice)]
    return [annotation]


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
