"""Layout search space: every legal layout of a recipe on a number of ranks, and node counts.

The rules in `components.config` decide which layouts are legal. Unless the recipe sets them,
this module skips GPipe (as slow as 1F1B, more activations), tensor without sequence parallelism
where both are possible, and split-backward schedules in runs that do not split the backward
pass (the formulas do not count the messages that interleaved stages hide).
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import product
from math import ceil
from typing import NamedTuple

from components.config.batch_ramp import microbatch_sizes
from components.config.phases import recipe_of
from components.config.recipe import Recipe
from components.config.resolve import check_mathematics
from components.config.rules.layout import (
    check_degrees,
    check_schedule,
    sequence_divisor,
    tensor_fits,
)
from components.config.schema.sections import Cluster, Parallelism
from components.config.stages import SPLIT_SCHEDULES, splits_backward
from components.errors import RecipeError
from components.planner.queues import nearest_nodes, takes_runs

SEARCHED = (
    *("data", "tensor", "pipeline", "expert", "context", "zero", "sequence_parallel"),
    *("microbatch_sequences", "recompute", "recompute_every", "schedule", "stages_per_rank"),
)
SCHEDULES = ("1f1b", "interleaved", "zero_bubble", "zbv", "dualpipev")
STAGES = (1, 2, 4)
# The largest machine in the profiles has 127,488 devices.
MOST_DEVICES = 131_072
# If the node-days of a run decrease with more nodes, they are assumed to decrease by this
# factor at most.
GAIN = 0.9
AxisDegrees = tuple[int, int, int, int]


class LayoutFamily(NamedTuple):
    """Legal layouts that differ only in the number of sequences per microbatch."""

    degrees: Parallelism
    sizes: tuple[int, ...]


class Layouts:
    """Legal layouts of ``template`` on ``ranks``, with the recipe's values of ``fixed`` keys.

    ``considered`` and ``legal`` are complete after all families have been listed.
    """

    def __init__(self, template: Recipe, *, ranks: int, fixed: frozenset[str]) -> None:
        self._template, self._ranks, self._fixed = template, ranks, fixed
        self._base = template.parallelism
        self._sizes: dict[tuple[int, int, str], tuple[int, ...]] = {}
        self.considered = self.legal = 0

    def iterate_families(self) -> Iterator[LayoutFamily]:
        """Yield all legal layouts, grouped by degrees."""
        for places in self._places():
            for degrees in self._settings(places):
                sizes = self._microbatches(degrees)
                self.considered += max(len(sizes), 1)
                if sizes and self._is_legal(degrees):
                    self.legal += len(sizes)
                    yield LayoutFamily(degrees, sizes)

    def _places(self) -> Iterator[AxisDegrees]:
        """Yield tensor, pipeline, expert and context degrees that divide ranks and model."""
        shape = self._template.decoder_spec
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
        """Check whether the model and the engine support this tensor degree."""
        if tensor == 1 or not tensor_fits(self._template.decoder_spec, tensor):
            return tensor == 1
        alone = dict.fromkeys(("pipeline", "expert", "context", "data_shard"), 1)
        alone |= {"tensor": tensor, "data": self._ranks // tensor, "sequence_parallel": False}
        try:
            check_degrees(self._with(self._changed(**alone)))
        except RecipeError as error:
            return error.path != "parallelism.tensor"
        return True

    def _values(self, axis: str, most: int, taken: int = 1) -> Iterator[int]:
        left, rest = divmod(self._ranks, taken)
        fixed = axis in self._fixed
        chosen = (getattr(self._base, axis),) if fixed else range(1, min(most, left) + 1)
        return (degree for degree in chosen if not rest and left % degree == 0)

    def _settings(self, places: AxisDegrees) -> Iterator[Parallelism]:
        tensor, pipeline, expert, context = places
        data = self._ranks // (tensor * pipeline * expert * context)
        moved = "data" in self._fixed and data != self._base.data
        if moved or not self._fits_batch(data * expert, pipeline):
            return
        axes = ("tensor", "pipeline", "expert", "context", "data")
        degrees: dict[str, object] = dict(zip(axes, (*places, data), strict=True))
        degrees["sequence_parallel"] = self._sequence_parallel(tensor, context)
        if "data_shard" not in self._fixed:
            degrees["data_shard"] = data * expert
        base_schedule = self._base.schedule, self._base.stages_per_rank
        schedules = self._schedules if pipeline > 1 else (base_schedule,)
        zeros = (self._base.zero,) if "zero" in self._fixed else (0, 1, 2, 3)
        for zero, (schedule, stages), again in product(zeros, schedules, self._again):
            degrees |= {"zero": zero, "recompute": again[0], "recompute_every": again[1]}
            degrees |= {"schedule": schedule, "stages_per_rank": stages}
            changed = self._changed(**degrees)
            if pipeline == 1 or not self._is_made_whole(changed):
                yield changed

    def _is_made_whole(self, degrees: Parallelism) -> bool:
        own = degrees.schedule == self._base.schedule
        return degrees.schedule in SPLIT_SCHEDULES and not (own or splits_backward(degrees))

    def _fits_batch(self, replicas: int, pipeline: int) -> bool:
        """Check that each data rank gets at least one microbatch per pipeline stage."""
        return all(
            plateau.samples % replicas == 0 and plateau.samples // replicas >= pipeline
            for plateau in self._template.batch_ramp.batch_stages
        )

    def _sequence_parallel(self, tensor: int, context: int) -> bool:
        if "sequence_parallel" in self._fixed or tensor == 1:
            return self._base.sequence_parallel
        divisor = sequence_divisor(context=context, slices=tensor)
        return self._template.budget.sequence_length % divisor == 0

    @cached_property
    def _again(self) -> tuple[tuple[object, int], ...]:
        """Recomputation settings to try: none, selective, full and the recipe's own."""
        base = self._base.recompute, self._base.recompute_every
        # The order is fixed because the first of several equal layouts is reported.
        every = dict.fromkeys((("none", 1), ("selective", 1), ("full", 1), base))
        fixed = {"recompute", "recompute_every"} & self._fixed
        return (base,) if fixed else tuple(every)

    @cached_property
    def _schedules(self) -> tuple[tuple[str, int], ...]:
        """Pair each schedule with the numbers of stages per rank that the rules allow."""
        base = self._base
        names = (base.schedule,) if "schedule" in self._fixed else SCHEDULES
        stages = (base.stages_per_rank,) if "stages_per_rank" in self._fixed else STAGES
        return tuple(
            (name, count)
            for name, count in product(names, stages)
            if _holds(check_schedule, self._changed(schedule=name, stages_per_rank=count))
        )

    def _microbatches(self, degrees: Parallelism) -> tuple[int, ...]:
        key = degrees.data * degrees.expert, degrees.pipeline, degrees.schedule
        if key not in self._sizes:
            replicas, pipeline, schedule = key
            self._sizes[key] = microbatch_sizes(
                self._template.batch_ramp,
                replicas=replicas,
                pipeline=pipeline,
                schedule=schedule,
            )
        if self._microbatches_are_free:
            return self._sizes[key]
        microbatch = self._base.microbatch_sequences
        return tuple(size for size in self._sizes[key] if size == microbatch)

    @cached_property
    def _microbatches_are_free(self) -> bool:
        """Whether the user and the rules allow other microbatch sizes; routers forbid it."""
        if "microbatch_sequences" in self._fixed:
            return False
        other = self._changed(microbatch_sequences=self._base.microbatch_sequences + 1)
        return _holds(check_mathematics, self._template, self._with(other))

    def _is_legal(self, degrees: Parallelism) -> bool:
        recipe, template = self._with(degrees), self._template
        return _holds(check_degrees, recipe) and _holds(check_mathematics, template, recipe)

    def holds_in_phases(self, degrees: Parallelism) -> bool:
        """Check that every phase of the run, with its own keys, is legal in this layout."""
        recipe = self._with(degrees)
        return all(_holds(recipe_of, recipe, name) for name in recipe.phases)

    @cached_property
    def _cluster(self) -> Cluster:
        cluster = self._template.cluster
        nodes = self._ranks // cluster.devices_per_node
        return cluster.model_copy(update={"ranks": self._ranks, "nodes": nodes})

    def _changed(self, **values: object) -> Parallelism:
        return self._base.model_copy(update=values)

    def _with(self, degrees: Parallelism) -> Recipe:
        """Put the degrees into the template without validation: callers check single rules."""
        assert "derived" not in self._template.__dict__, "it would be that of other degrees"
        return self._template.model_copy(
            update={"parallelism": degrees, "cluster": self._cluster}
        )


def _holds(check: Callable[..., object], *arguments: object) -> bool:
    try:
        check(*arguments)
    except RecipeError:
        return False
    return True


def most_nodes(cluster: Cluster) -> int:
    """Return the largest number of nodes of a job, as far as the profile specifies it."""
    queues = [queue.most_nodes for queue in cluster.queues if not queue.debug]
    return max(queues, default=MOST_DEVICES // cluster.devices_per_node)


def has_layout(template: Recipe, nodes: int, fixed: frozenset[str]) -> bool:
    """Check whether any layout is legal on this number of nodes."""
    ranks = nodes * template.cluster.devices_per_node
    return any(True for _ in Layouts(template, ranks=ranks, fixed=fixed).iterate_families())


def near_nodes(cluster: Cluster, ranks: int) -> Iterator[int]:
    """Yield node counts for ``ranks``, nearest first: the exact one, else within a quarter.

    Only counts that a queue accepts for a long run; without any, the nearest such count.
    """
    devices, most = cluster.devices_per_node, most_nodes(cluster)
    whole, rest = divmod(ranks, devices)
    if not rest or whole >= most:
        span = [min(whole, most)]
    else:
        span = list(range(max(1, 3 * whole // 4), min(5 * whole // 4 + 1, most) + 1))
    accepted = [nodes for nodes in span if takes_runs(cluster, nodes)]
    candidates = accepted or nearest_nodes(cluster, whole) or span
    yield from sorted(candidates, key=lambda nodes: abs(nodes * devices - ranks))


def fewest_nodes(
    template: Recipe,
    fixed: frozenset[str],
    *,
    within_days: float,
    days_on: Callable[[int], float | None],
) -> int:
    """Return the smallest number of nodes on which the run finishes within the given days.

    Twice the nodes are hardly more than twice as fast, so the search skips small numbers.
    ``days_on`` returns None if no layout fits. RecipeError names the fastest number if all
    fail.
    """
    cluster = template.cluster
    days: dict[int, float] = {}
    nodes, most = 1, most_nodes(cluster)
    while nodes <= most:
        if not takes_runs(cluster, nodes):
            nodes += 1
            continue
        run_days = days_on(nodes) if has_layout(template, nodes, fixed) else None
        if run_days is not None:
            if run_days <= within_days:
                return nodes
            days[nodes] = run_days
            if nodes >= 8 * min(days, key=days.__getitem__):
                break  # 8 times the nodes of the fastest are not faster
        node_days = min((count * each for count, each in days.items()), default=0.0)
        nodes = max(nodes + 1, ceil(GAIN * node_days / within_days))
    if not days:
        raise RecipeError(
            "within_days",
            f"{within_days:g}: no layout fits any number of nodes of {cluster.name} up to "
            f"{most:,}",
            "name fewer parallelism.* keys, or choose a cluster with more memory a device",
        )
    quickest = min(days, key=days.__getitem__)
    raise RecipeError(
        "within_days",
        f"{within_days:g}: no number of nodes of {cluster.name} gets there, as more nodes wait "
        f"longer for each other; the quickest found takes {days[quickest]:.3g} days on "
        f"{quickest:,} nodes",
        f"set within_days={ceil(days[quickest])}, or lower budget.total_tokens",
    )
