"""Every legal layout of a recipe on a number of ranks.

What may stand in a layout is asked of the recipe's own rules (`components.config`); here only
the values are listed that are worth asking about. Two kinds are left out, unless the user names
them, because the plan's formulas never prefer them: GPipe, which waits as long as 1F1B and
keeps more, and tensor ranks that could be sequence parallel and are not.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from components.config.batch_ramp import microbatch_sizes
from components.config.resolve import check_mathematics
from components.config.rules.layout import (
    check_degrees,
    check_schedule,
    sequence_divisor,
    tensor_fits,
)
from components.config.schema.recipe import Recipe
from components.config.schema.sections import Parallelism
from components.errors import RecipeError

SEARCHED = (
    *("data", "tensor", "pipeline", "expert", "context", "zero", "sequence_parallel"),
    *("microbatch_sequences", "recompute", "schedule", "stages_per_rank"),
)
SCHEDULES, STAGES = ("1f1b", "interleaved", "zero_bubble"), (1, 2, 4)
Places = tuple[int, int, int, int]


@dataclass(frozen=True)
class LayoutFamily:
    """Legal layouts that differ in the sequences of a microbatch alone."""

    degrees: Parallelism
    sizes: tuple[int, ...]


class Layouts:
    """The layouts of ``template`` on ``ranks``; the keys in ``fixed`` keep its values.

    ``considered`` and ``legal`` count, once all are listed.
    """

    def __init__(self, template: Recipe, *, ranks: int, fixed: frozenset[str]) -> None:
        self._template, self._ranks, self._fixed = template, ranks, fixed
        self._base = template.parallelism
        self._sizes: dict[tuple[int, int, str], tuple[int, ...]] = {}
        self.considered = self.legal = 0

    def families(self) -> Iterator[LayoutFamily]:
        """List all legal layouts, those of like degrees together."""
        for places in self._places():
            for degrees in self._settings(places):
                sizes = self._microbatches(degrees)
                self.considered += max(len(sizes), 1)
                if sizes and self._is_legal(degrees):
                    self.legal += len(sizes)
                    yield LayoutFamily(degrees, sizes)

    def _places(self) -> Iterator[Places]:
        """List tensor, pipeline, expert and context degrees that divide ranks and model."""
        shape = self._template.shape
        experts = shape.mlp.num_experts or 1
        length = self._template.budget.sequence_length
        for tensor in self._values("tensor", shape.attention.num_heads):
            if not self._takes_tensor(tensor):
                continue
            for pipeline in self._values("pipeline", shape.num_layers, tensor):
                for expert in self._values("expert", experts, tensor * pipeline):
                    others = tensor * pipeline * expert
                    if experts % expert == 0:
                        for context in self._values("context", length, others):
                            yield tensor, pipeline, expert, context

    def _takes_tensor(self, tensor: int) -> bool:
        """Ask the rules once whether model and engine take so many tensor ranks at all."""
        if tensor == 1 or not tensor_fits(self._template.shape, tensor):
            return tensor == 1
        alone = dict.fromkeys(("pipeline", "expert", "context", "data_shard"), 1)
        data = self._ranks // tensor
        update = {**alone, "tensor": tensor, "data": data, "sequence_parallel": False}
        try:
            check_degrees(self._with(self._base.model_copy(update=update)))
        except RecipeError as error:
            return error.path != "parallelism.tensor"
        return True

    def _values(self, axis: str, most: int, taken: int = 1) -> Iterator[int]:
        """List degrees of an axis on the ranks that others leave."""
        left, rest = divmod(self._ranks, taken)
        chosen = range(1, min(most, left) + 1)
        if axis in self._fixed:
            chosen = range(getattr(self._base, axis), getattr(self._base, axis) + 1)
        return (degree for degree in chosen if not rest and left % degree == 0)

    def _settings(self, places: Places) -> Iterator[Parallelism]:
        tensor, pipeline, expert, context = places
        data = self._ranks // (tensor * pipeline * expert * context)
        if "data" in self._fixed and data != self._base.data:
            return
        if not self._fits_batch(data * expert, pipeline):
            return
        degrees: dict[str, object] = {
            "tensor": tensor,
            "pipeline": pipeline,
            "expert": expert,
            "context": context,
            "data": data,
            "sequence_parallel": self._sequence_parallel(tensor, context),
        }
        if "data_shard" not in self._fixed:
            degrees["data_shard"] = data * expert
        kept = self._base.schedule, self._base.stages_per_rank
        schedules = self._schedules if pipeline > 1 else (kept,)
        zeros = (self._base.zero,) if "zero" in self._fixed else (0, 1, 2, 3)
        for zero, (schedule, stages), again in product(zeros, schedules, self._again):
            degrees |= {"zero": zero, "recompute": again}
            degrees |= {"schedule": schedule, "stages_per_rank": stages}
            yield self._base.model_copy(update=degrees)

    def _fits_batch(self, replicas: int, pipeline: int) -> bool:
        """Leave out at once what gives a data rank less than a microbatch for each stage."""
        return all(
            plateau.samples % replicas == 0 and plateau.samples // replicas >= pipeline
            for plateau in self._template.ramp.plateaus
        )

    def _sequence_parallel(self, tensor: int, context: int) -> bool:
        if "sequence_parallel" in self._fixed or tensor == 1:
            return self._base.sequence_parallel
        divisor = sequence_divisor(context=context, slices=tensor)
        return self._template.budget.sequence_length % divisor == 0

    @cached_property
    def _again(self) -> tuple[object, ...]:
        """Nothing, whole layers, or what the recipe itself recomputes."""
        base = self._base.recompute
        # In a fixed order: of layouts that are equal the first is named.
        every = dict.fromkeys(("none", "full", base))
        return (base,) if "recompute" in self._fixed else tuple(every)

    @cached_property
    def _schedules(self) -> tuple[tuple[str, int], ...]:
        """Pair schedules with the stages that they have on a rank, as far as the rules let."""
        base = self._base
        names = (base.schedule,) if "schedule" in self._fixed else SCHEDULES
        stages = (base.stages_per_rank,) if "stages_per_rank" in self._fixed else STAGES
        return tuple(
            (name, count)
            for name, count in product(names, stages)
            if _holds(
                check_schedule,
                base.model_copy(update={"schedule": name, "stages_per_rank": count}),
            )
        )

    def _microbatches(self, degrees: Parallelism) -> tuple[int, ...]:
        key = degrees.data * degrees.expert, degrees.pipeline, degrees.schedule
        if key not in self._sizes:
            replicas, pipeline, schedule = key
            self._sizes[key] = microbatch_sizes(
                self._template.ramp, replicas=replicas, pipeline=pipeline, schedule=schedule
            )
        if "microbatch_sequences" in self._fixed or not self._microbatches_are_free:
            kept = self._base.microbatch_sequences
            return tuple(size for size in self._sizes[key] if size == kept)
        return self._sizes[key]

    @cached_property
    def _microbatches_are_free(self) -> bool:
        """Whether the rules let a run go on with other microbatches: routers do not."""
        other = self._base.microbatch_sequences + 1
        degrees = self._base.model_copy(update={"microbatch_sequences": other})
        return _holds(check_mathematics, self._template, self._with(degrees))

    def _is_legal(self, degrees: Parallelism) -> bool:
        recipe = self._with(degrees)
        return _holds(check_degrees, recipe) and _holds(
            check_mathematics, self._template, recipe
        )

    @cached_property
    def _cluster(self) -> dict[str, object]:
        cluster = self._template.cluster
        nodes = self._ranks // cluster.devices_per_node
        return {"cluster": cluster.model_copy(update={"ranks": self._ranks, "nodes": nodes})}

    def _with(self, degrees: Parallelism) -> Recipe:
        """Put degrees into the template, unchecked: the rules are asked one by one."""
        assert "derived" not in self._template.__dict__, "it would be that of other degrees"
        return self._template.model_copy(update={"parallelism": degrees, **self._cluster})


def _holds(check: Callable[..., None], *arguments: object) -> bool:
    """Ask a rule."""
    try:
        check(*arguments)
    except RecipeError:
        return False
    return True
