"""One rank's step without values: memory, collectives and FLOPs of the whole step.

``python -m components.dryrun.rehearsal FOLDER RANK`` reads the recipe of a run folder and
writes there ``role-RANK.json``. FLOPs are those of matrix products and attention, unmasked.

With as many microbatches as a rank ever has in flight, and one more, a step reaches its peak.
Calls and FLOPs of the passes grow by the same number with each; those after them do not, nor
what data ranks send once a step under a pass.
"""

import logging
import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from components.config.batch_ramp import fewest_microbatches
from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.config.stages import V_SCHEDULES
from components.distributed.devices import device_type
from components.distributed.grad_buckets import GradBucket
from components.distributed.weight_gather import WeightGather
from components.dryrun import ledgers, world
from components.run.folder import RunFolder
from components.torch_internals.operators import FakeTensorMode
from components.versions import release_of

# Before this torch a schedule of so many microbatches begins with a message to each neighbour.
_GREETS_BEFORE = (2, 13)


@dataclass(frozen=True)
class StepRehearsal:
    """What one rank's step takes."""

    microbatches: int
    rehearsed: int  # of these were gone through
    peaks: dict[ledgers.Phase, ledgers.Peak]
    calls: dict[ledgers.CollectiveKind, int]
    bytes: dict[ledgers.CollectiveKind, int]
    flops: dict[str, int]  # by operator


def rehearse(recipe: Recipe, rank: int) -> StepRehearsal:
    """Take two steps as ``rank`` of the recipe's world; the process needs no device."""
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # Lightning's own use of torch
    warnings.filterwarnings("ignore", message=".*`srun` command is available.*")  # a login node
    warnings.filterwarnings("ignore", message="Mismatch dtype between input")  # a norm's, known
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    count = microbatches_to_rehearse(recipe)
    on_device = device_type(recipe.cluster.device)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with world.fake_world(rank, recipe.cluster.ranks), ExitStack() as modes:
        module = world.FakeRank(recipe=recipe, fake=fake)
        module.configure_model()
        world.replace_parts(module, on_device)
        optimizer = module.configure_optimizers()
        if on_device != "cpu":
            for group in optimizer.param_groups:
                group["foreach"] = True  # the update that torch chooses on a GPU
        modes.enter_context(fake)
        modes.enter_context(world.even_load())
        if on_device != "cpu":
            modes.enter_context(world.device_kernels(on_device))
        modes.enter_context(world.Answers())
        return _observe(module, modes, count)


def _observe(module: world.FakeRank, modes: ExitStack, count: int) -> StepRehearsal:
    """Take a first step unseen, as short as it may be, and watch the second.

    The first makes the optimizer's state, and DTensor asks for the shapes of new operators.
    """
    greets = release_of(torch.__version__) < _GREETS_BEFORE
    degrees = module.recipe.parallelism
    fewest = fewest_microbatches(degrees.pipeline, degrees.schedule)
    first = count if greets else min(fewest, count)
    module.training_step(world.empty_batch(module.recipe, first))
    flops = modes.enter_context(ledgers.FlopLedger())
    calls = modes.enter_context(ledgers.CollectiveLedger(module.mesh))
    memory = _memory_ledger(module)
    modes.enter_context(memory)
    counters: tuple[Counter[Any], ...] = (calls.calls, calls.bytes, flops.flops)
    within: list[Counter[Any]] = []
    run = module.microbatches.run

    def run_watched(batch: Tensor, scale: float) -> None:
        for counter in counters:
            counter.clear()
        memory.phase = "forward"
        run(batch, scale)
        memory.phase = "reduction"
        within.extend(counter.copy() for counter in counters)
        for counter in counters:
            counter.clear()

    modes.enter_context(patch.object(module.microbatches, "run", run_watched))
    once = modes.enter_context(_once_a_step(module, memory, (calls.calls, calls.bytes)))
    _follow(module, memory)
    memory.begin()
    module.training_step(world.empty_batch(module.recipe, count))
    memory.settle()
    for counter, counted in zip(counters, once, strict=False):
        counter.update(counted)
    whole = module.recipe.derived.microbatches_per_step
    pairs = zip(within, counters, strict=True)
    continued = (_continued(passes, after, count, whole) for passes, after in pairs)
    return StepRehearsal(whole, count, memory.peaks, *continued)


def _memory_ledger(module: world.FakeRank) -> ledgers.MemoryLedger:
    """Name what a step begins with; masters belong to the optimizer."""
    weights = [weight for _, weight in module.named_weights()]
    optimizer = module.engine.optimizer
    updated = [one for group in optimizer.param_groups for one in group["params"]]
    sums = module.engine.data_parallel.gradient_buffers
    memory = ledgers.MemoryLedger([*weights, *updated], sums)
    states = [value for state in optimizer.state.values() for value in state.values()]
    masters = [one.parameter for one in module.engine.shards if one.is_master]
    memory.name("weights", weights)
    memory.name("optimizer", masters)
    memory.name("optimizer", (value for value in states if isinstance(value, Tensor)))
    return memory


@contextmanager
def _once_a_step(
    module: world.FakeRank, memory: ledgers.MemoryLedger, counters: Sequence[Counter[Any]]
) -> Iterator[Sequence[Counter[Any]]]:
    """Count apart what data ranks send under passes, but not for each microbatch.

    Weights are gathered once; at ZeRO 2 gradients leave after every microbatch.
    """
    once: tuple[Counter[Any], ...] = tuple(Counter() for _ in counters)

    def apart(given: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            before, phase = [counter.copy() for counter in counters], memory.phase
            memory.phase = "reduction" if phase == "forward" else phase
            result = given(*arguments)
            memory.phase = phase
            for counter, held, own in zip(counters, before, once, strict=True):
                own.update(counter - held)
                counter.clear()
                counter.update(held)
            return result

        return counted

    watched: list[tuple[type, str]] = [(WeightGather, "settle")]
    if module.recipe.parallelism.zero < 2:
        watched += [(GradBucket, "depart"), (GradBucket, "cross")]
    with ExitStack() as patches:
        for owner, name in watched:
            patches.enter_context(patch.object(owner, name, apart(getattr(owner, name))))
        yield once


def microbatches_to_rehearse(recipe: Recipe) -> int:
    """Choose as many as reach the peak, or all.

    Torch's schedules want a microbatch for each rank, and no rank keeps more in flight, but for
    GPipe, which keeps all. Where a rank has several stages, rounds of as many microbatches as
    ranks go through them, three until it repeats itself; longer rounds are all gone through. A
    V is full with two a rank.
    """
    degrees, whole = recipe.parallelism, recipe.derived.microbatches_per_step
    ranks = degrees.pipeline
    if ranks > 1 and degrees.schedule == "gpipe":
        return whole
    if ranks > 1 and degrees.schedule in V_SCHEDULES:
        return min(2 * ranks + 1, whole)
    if ranks > 1 and degrees.stages_per_rank > 1:
        return whole if whole % ranks else min(3 * ranks, whole)
    return min(ranks + 1, whole)


def _follow(module: world.FakeRank, memory: ledgers.MemoryLedger) -> None:
    """Tell the account where in the step the module is."""

    def goes_forward(*_: Any) -> None:
        memory.find_gradients()
        memory.microbatches_begun += 1

    def updates(*_: Any) -> None:
        memory.phase = "update"

    def has_gradient(weight: Any) -> None:
        memory.name("gradients", [] if weight.grad is None else [weight.grad])
        memory.name("gradients", module.engine.data_parallel.gradient_buffers())

    weight: Any
    for _, weight in module.named_weights():
        weight.register_post_accumulate_grad_hook(has_gradient)
    for decoder in module.decoders:
        decoder.register_forward_pre_hook(goes_forward, prepend=True)
    module.engine.optimizer.register_step_pre_hook(updates)


def _continued(
    within: Counter[Any], after: Counter[Any], count: int, whole: int
) -> dict[Any, int]:
    """Let the counts within the passes grow with the microbatches; those after do not."""
    found = Counter(after)
    for kind, counted in within.items():
        each, rest = divmod(counted, count)
        assert rest == 0, f"{kind} does not grow evenly with the microbatches"
        found[kind] += each * whole
    return dict(found)


def main(words: Sequence[str]) -> None:
    """Rehearse and write ``role-RANK.json``: bytes and FLOPs of one step."""
    folder, rank = RunFolder(Path(words[0])), int(words[1])
    began = time.perf_counter()
    found = rehearse(read_recipe(folder.recipe), rank)
    tree = {
        "microbatches": found.microbatches,
        "rehearsed_microbatches": found.rehearsed,
        "peaks": {
            phase: {**asdict(peak), "bytes": peak.bytes} for phase, peak in found.peaks.items()
        },
        "collectives": [
            {
                **kind._asdict(),
                "count": count,
                "bytes": found.bytes[kind],
                "sent_bytes": round(ledgers.sent_bytes(kind, found.bytes[kind])),
            }
            for kind, count in found.calls.items()
        ],
        "flops": found.flops,
        "seconds": time.perf_counter() - began,
        "host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    folder.write_json(f"role-{rank}.json", tree)


if __name__ == "__main__":
    main(sys.argv[1:])
