"""Dry run of one rank's step: memory, collectives and FLOPs of the whole step.

``python -m components.dryrun.rehearsal FOLDER RANK`` reads the recipe of a run folder and
writes ``role-RANK.json`` there. FLOPs count matrix products and unmasked attention. A step
reaches its memory peak with one microbatch more than a rank ever has in flight. Calls and FLOPs
of the passes are linear in the microbatches. Those after the passes are constant, as are the
messages that data ranks send once per step during a pass.
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
from components.dryrun import fake_world, trackers
from components.run.folder import RunFolder
from components.torch_internals.operators import FakeTensorMode
from components.versions import release_of

# Before this torch, a pipeline's first step with a given number of microbatches sends an extra
# message to each neighbor.
_GREETS_BEFORE = (2, 13)


@dataclass(frozen=True)
class StepTrace:
    """Trace of one rank's step: memory peaks, collectives and FLOPs."""

    microbatches: int
    rehearsed: int  # microbatches of the dry run
    peaks: dict[trackers.StepPhase, trackers.Peak]
    calls: dict[trackers.CollectiveKind, int]
    bytes: dict[trackers.CollectiveKind, int]
    flops: dict[str, int]  # by operator


def run_two_steps(recipe: Recipe, rank: int) -> StepTrace:
    """Run two steps as ``rank`` of the recipe's world; the process needs no device."""
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # Lightning's own use of torch
    warnings.filterwarnings("ignore", message=".*`srun` command is available.*")  # a login node
    warnings.filterwarnings(
        "ignore", message="Mismatch dtype between input"
    )  # known, from a norm
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    count = microbatches_to_rehearse(recipe)
    on_device = device_type(recipe.cluster.device)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake_world.fake_world(rank, recipe.cluster.ranks), ExitStack() as modes:
        module = fake_world.FakeRank(recipe=recipe, fake=fake)
        module.configure_model()
        fake_world.replace_parts(module, on_device)
        optimizer = module.configure_optimizers()
        if on_device != "cpu":
            for group in optimizer.param_groups:
                group["foreach"] = True  # the update that torch chooses on a GPU
        modes.enter_context(fake)
        modes.enter_context(fake_world.even_load())
        if on_device != "cpu":
            modes.enter_context(fake_world.device_kernels(on_device))
        modes.enter_context(fake_world.FakeScalars())
        return _observe(module, modes, count)


def _observe(module: fake_world.FakeRank, modes: ExitStack, count: int) -> StepTrace:
    """Trace the second step; the first creates optimizer state and fills DTensor's cache."""
    sends_greeting = release_of(torch.__version__) < _GREETS_BEFORE
    degrees = module.recipe.parallelism
    fewest = fewest_microbatches(degrees.pipeline, degrees.schedule)
    first = count if sends_greeting else min(fewest, count)
    module.training_step(fake_world.empty_batch(module.recipe, first))
    flops = modes.enter_context(trackers.FlopLedger())
    calls = modes.enter_context(trackers.CollectiveLedger(module.parallel_mesh))
    memory = _memory_ledger(module)
    modes.enter_context(memory)
    counters: tuple[Counter[Any], ...] = (calls.calls, calls.bytes, flops.flops)
    within: list[Counter[Any]] = []
    run = module.microbatches.accumulate_gradients

    def run_watched(batch: Tensor, scale: float) -> None:
        for counter in counters:
            counter.clear()
        memory.phase = "forward"
        run(batch, scale)
        memory.phase = "reduction"
        within.extend(counter.copy() for counter in counters)
        for counter in counters:
            counter.clear()

    modes.enter_context(patch.object(module.microbatches, "accumulate_gradients", run_watched))
    once = modes.enter_context(_once_a_step(module, memory, (calls.calls, calls.bytes)))
    _follow(module, memory)
    memory.start_step()
    module.training_step(fake_world.empty_batch(module.recipe, count))
    memory.record_peak()
    for counter, counted in zip(counters, once, strict=False):
        counter.update(counted)
    total = module.recipe.derived_numbers.microbatches_per_step
    pairs = zip(within, counters, strict=True)
    continued = (_continued(passes, after, count, total) for passes, after in pairs)
    return StepTrace(total, count, memory.peaks, *continued)


def _memory_ledger(module: fake_world.FakeRank) -> trackers.MemoryLedger:
    """Return a ledger with the memory at the start of a step; masters count as optimizer."""
    weights = [weight for _, weight in module.named_weights()]
    optimizer = module.engine.optimizer
    updated = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    sums = module.engine.data_parallel.gradient_buffers
    memory = trackers.MemoryLedger([*weights, *updated], sums)
    states = [value for state in optimizer.state.values() for value in state.values()]
    masters = [shard.parameter for shard in module.engine.shards if shard.is_master]
    memory.set_category("weights", weights)
    memory.set_category("optimizer", masters)
    memory.set_category("optimizer", (value for value in states if isinstance(value, Tensor)))
    return memory


@contextmanager
def _once_a_step(
    module: fake_world.FakeRank, memory: trackers.MemoryLedger, counters: Sequence[Counter[Any]]
) -> Iterator[Sequence[Counter[Any]]]:
    """Count separately what data ranks send once per step, although during the passes.

    These are the gathers of weights and, below ZeRO 2, the reductions of gradients.
    """
    once: tuple[Counter[Any], ...] = tuple(Counter() for _ in counters)

    def wrap_function(given: Callable[..., Any]) -> Callable[..., Any]:
        def count_call(*arguments: Any) -> Any:
            before, phase = [counter.copy() for counter in counters], memory.phase
            memory.phase = "reduction" if phase == "forward" else phase
            result = given(*arguments)
            memory.phase = phase
            for counter, previous, per_step in zip(counters, before, once, strict=True):
                per_step.update(counter - previous)
                counter.clear()
                counter.update(previous)
            return result

        return count_call

    watched: list[tuple[type, str]] = [(WeightGather, "wait_for_weights")]
    if module.recipe.parallelism.zero < 2:
        watched += [(GradBucket, "start_reduce"), (GradBucket, "start_replica_reduce")]
    with ExitStack() as patches:
        for owner, name in watched:
            patches.enter_context(
                patch.object(owner, name, wrap_function(getattr(owner, name)))
            )
        yield once


def microbatches_to_rehearse(recipe: Recipe) -> int:
    """Return the number of microbatches that reaches the memory peak, at most all.

    Torch's schedules need a microbatch for each rank. No rank has more in flight, except with
    GPipe, which stores all. If a rank has several stages, microbatches run in rounds of the
    number of ranks, and the third round repeats the second; if rounds are uneven, run all. V
    schedules have at most two microbatches per rank in flight.
    """
    degrees, total = recipe.parallelism, recipe.derived_numbers.microbatches_per_step
    ranks = degrees.pipeline
    if ranks > 1 and degrees.schedule == "gpipe":
        return total
    if ranks > 1 and degrees.schedule in V_SCHEDULES:
        return min(2 * ranks + 1, total)
    if ranks > 1 and degrees.stages_per_rank > 1:
        return total if total % ranks else min(3 * ranks, total)
    return min(ranks + 1, total)


def _follow(module: fake_world.FakeRank, memory: trackers.MemoryLedger) -> None:
    """Add hooks that set the ledger's phase, gradients and count of microbatches."""

    def goes_forward(*_: Any) -> None:
        memory.find_gradients()
        memory.microbatches_begun += 1

    def mark_update(*_: Any) -> None:
        memory.phase = "update"

    def has_gradient(weight: Any) -> None:
        memory.set_category("gradients", [] if weight.grad is None else [weight.grad])
        memory.set_category("gradients", module.engine.data_parallel.gradient_buffers())

    weight: Any
    for _, weight in module.named_weights():
        weight.register_post_accumulate_grad_hook(has_gradient)
    for decoder in module.stage_decoders:
        decoder.register_forward_pre_hook(goes_forward, prepend=True)
    module.engine.optimizer.register_step_pre_hook(mark_update)


def _continued(
    within: Counter[Any], after: Counter[Any], count: int, whole: int
) -> dict[Any, int]:
    """Scale the counts of the passes to ``whole`` microbatches; add the counts after them."""
    total = Counter(after)
    for kind, counted in within.items():
        per_microbatch, rest = divmod(counted, count)
        assert rest == 0, f"{kind} does not grow evenly with the microbatches"
        total[kind] += per_microbatch * whole
    return dict(total)


def main(words: Sequence[str]) -> None:
    """Run the dry run and write ``role-RANK.json``: bytes and FLOPs of one step."""
    folder, rank = RunFolder(Path(words[0])), int(words[1])
    began = time.perf_counter()
    trace = run_two_steps(read_recipe(folder.recipe), rank)
    tree = {
        "microbatches": trace.microbatches,
        "rehearsed_microbatches": trace.rehearsed,
        "peaks": {
            phase: {**asdict(peak), "bytes": peak.total_bytes}
            for phase, peak in trace.peaks.items()
        },
        "collectives": [
            {
                **kind._asdict(),
                "count": count,
                "bytes": trace.bytes[kind],
                "sent_bytes": round(trackers.sent_bytes(kind, trace.bytes[kind])),
            }
            for kind, count in trace.calls.items()
        ],
        "flops": trace.flops,
        "seconds": time.perf_counter() - began,
        "host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    folder.write_json(f"role-{rank}.json", tree)


if __name__ == "__main__":
    main(sys.argv[1:])
