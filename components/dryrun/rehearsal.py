"""One rank's step without values: memory, collectives and FLOPs of the whole step.

FLOPs are those of matrix products and attention, the whole of its matrix: a mask is not seen.

A step of many microbatches repeats itself: with as many as a rank ever has in flight, and one
more, it reaches its peak. Calls and FLOPs of the passes grow by the same number with every
microbatch, those of averaging and updating do not grow: so the counts of all are known.
"""

import logging
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from components.config.schema.recipe import Recipe
from components.distributed.devices import device_type
from components.dryrun.collectives import CollectiveKind, CollectiveLedger
from components.dryrun.kernels import device_kernels, even_load, replace_parts, update_at_once
from components.dryrun.memory import MemoryLedger, OperatorWatch, Peak, Phase
from components.dryrun.world import Answers, FakeRank, empty_batch, fake_world
from components.profiling.counts import FORMULAS
from components.torch_internals.operators import FakeTensorMode, packet_of
from components.versions import release_of


class FlopLedger(OperatorWatch):
    """Count by operator."""

    def __init__(self) -> None:
        super().__init__()
        self.flops: Counter[str] = Counter()

    @override
    def see(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result, packet = func(*args, **kwargs), packet_of(func)
        formula = FORMULAS.get(packet)
        if formula is not None:
            name = str(packet).removeprefix("aten.").strip("_")
            self.flops[name] += formula(*args, **kwargs, out_val=result)
        return result

    def take(self) -> Counter[str]:
        """Hand over the counts, and begin anew."""
        taken, self.flops = self.flops, Counter()
        return taken


K = TypeVar("K")
# Before this torch a schedule of so many microbatches begins with a message to each neighbour.
_GREETS_BEFORE = (2, 13)


@dataclass(frozen=True, kw_only=True)
class StepRehearsal:
    """What one rank's step of ``microbatches`` takes; ``rehearsed`` of them were gone through.

    ``calls`` and ``bytes`` are of collectives, ``flops`` by operator.
    """

    microbatches: int
    rehearsed: int
    peaks: dict[Phase, Peak]
    calls: dict[CollectiveKind, int]
    bytes: dict[CollectiveKind, int]
    flops: dict[str, int]


@dataclass(frozen=True)
class _Counts:
    calls: Counter[CollectiveKind]
    bytes: Counter[CollectiveKind]
    flops: Counter[str]


def rehearse(recipe: Recipe, rank: int) -> StepRehearsal:
    """Take two steps as ``rank`` of the recipe's world; the process needs no device."""
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # Lightning's own use of torch
    warnings.filterwarnings("ignore", message=".*`srun` command is available.*")  # a login node
    warnings.filterwarnings("ignore", message="Mismatch dtype between input")  # a norm's, known
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    count = microbatches_to_rehearse(recipe)
    on_device = device_type(recipe.cluster.device)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake_world(rank, recipe.cluster.ranks):
        module = FakeRank(recipe=recipe, fake=fake)
        module.configure_model()
        replace_parts(module, on_device)
        optimizer = module.configure_optimizers()
        if on_device != "cpu":
            update_at_once(optimizer)
        module.train_dataloader()
        with ExitStack() as modes:
            modes.enter_context(fake)
            modes.enter_context(even_load())
            if on_device != "cpu":
                modes.enter_context(device_kernels())
            modes.enter_context(Answers())
            return _observe(module, modes, count)


def _observe(module: FakeRank, modes: ExitStack, count: int) -> StepRehearsal:
    """Take a first step unseen, as short as it may be, and watch the second.

    The first makes the optimizer's state, and DTensor asks fake tensors of global size for the
    shapes of every operator that it meets for the first time.
    """
    greets = release_of(torch.__version__) < _GREETS_BEFORE
    first = count if greets else min(module.recipe.parallelism.pipeline, count)
    module.training_step(empty_batch(module.recipe, first))
    flops = modes.enter_context(FlopLedger())
    calls = modes.enter_context(CollectiveLedger(module.mesh))
    memory = modes.enter_context(MemoryLedger(parameters_of(module)))
    memory.name("weights", (weight for _, weight in module.named_weights()))
    memory.name("optimizer", _tensors(module.engine.optimizer.state.values()))
    passes = []

    def on_passes(begin: bool) -> None:
        memory.phase = "forward" if begin else "reduction"
        passes.append(_taken(calls, flops))

    module.on_passes = on_passes
    _follow(module, memory)
    memory.begin()
    module.training_step(empty_batch(module.recipe, count))
    memory.end()
    within, after = passes[1], _taken(calls, flops)
    whole = module.recipe.derived.microbatches_per_step
    return StepRehearsal(
        microbatches=whole,
        rehearsed=count,
        peaks=memory.peaks,
        calls=_continued(within.calls, after.calls, count, whole),
        bytes=_continued(within.bytes, after.bytes, count, whole),
        flops=_continued(within.flops, after.flops, count, whole),
    )


def _taken(calls: CollectiveLedger, flops: FlopLedger) -> _Counts:
    counted, sent = calls.take()
    return _Counts(counted, sent, flops.take())


def microbatches_to_rehearse(recipe: Recipe) -> int:
    """Choose as many as reach the peak, or all.

    Torch's schedules want a microbatch for each rank, and no rank keeps more in flight, but for
    GPipe, which keeps all. Where a rank has several stages, rounds of as many microbatches as
    ranks go through them, three until it repeats itself; longer rounds are all gone through.
    """
    degrees, whole = recipe.parallelism, recipe.derived.microbatches_per_step
    ranks = degrees.pipeline
    if ranks > 1 and degrees.schedule == "gpipe":
        return whole
    if ranks > 1 and degrees.stages_per_rank > 1:
        return whole if whole % ranks else min(3 * ranks, whole)
    return min(ranks + 1, whole)


def _follow(module: FakeRank, memory: MemoryLedger) -> None:
    """Tell the account where in the step the module is."""

    def goes_forward(*_: Any) -> None:
        memory.find_gradients()
        memory.microbatches_begun += 1

    def updates(*_: Any) -> None:
        memory.phase = "update"

    def found(weight: Tensor) -> None:
        if weight.grad is not None:
            memory.name("gradients", [weight.grad])

    for _, weight in module.named_weights():
        hooked: Any = weight
        hooked.register_post_accumulate_grad_hook(found)
    for decoder in module.decoders:
        decoder.register_forward_pre_hook(goes_forward, prepend=True)
    module.engine.optimizer.register_step_pre_hook(updates)


def parameters_of(module: FakeRank) -> list[Tensor]:
    """List what may have a gradient: weights, and what the optimizer updates of them."""
    weights = [weight for _, weight in module.named_weights()]
    groups = module.engine.optimizer.param_groups
    return [*weights, *chain.from_iterable(group["params"] for group in groups)]


def _tensors(states: Iterable[dict[str, Any]]) -> Iterator[Tensor]:
    return (value for state in states for value in state.values() if isinstance(value, Tensor))


def _continued(within: Counter[K], after: Counter[K], count: int, whole: int) -> dict[K, int]:
    """Let the counts within the passes grow with the microbatches; those after do not."""
    found = Counter(after)
    for kind, counted in within.items():
        each, rest = divmod(counted, count)
        assert rest == 0, f"{kind} does not grow evenly with the microbatches"
        found[kind] += each * whole
    return dict(found)
