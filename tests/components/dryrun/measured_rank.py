"""A real rank: ``python measured_rank.py RANK RANKS FOLDER [FOLDER]``.

It takes steps of each run folder's recipe on real tensors and real gloo, and writes the most
that torch's own CPU allocator had given out in one, as the profiler logs every allocation and
release from the start; and what collectives and FLOPs a step made. Of three steps after the
first the leanest counts: what gloo's threads give back within one the profiler does not see.
"""

import gc
import json
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.dryrun.fake_world import empty_batch, trainer_of
from components.dryrun.trackers import CollectiveLedger, FlopLedger
from components.run.folder import RunFolder
from components.train.batches import StepBatch
from components.train.module import Pretraining

STEP, STEPS = "a later step", 3
PAUSE_SECONDS = 0.02
# Only a CPU allocates these: gloo sums in a copy, and `scatter_` sorts its indices.
IN_PLACE = {"c10d::_reduce_scatter_base_", "aten::scatter_"}
BY_ONEDNN = "mkldnn._linear_pointwise"


class Unhurried(TorchDispatchMode):
    """Pause at the end of a collective, so that the threads of gloo free their tensors first.

    The profiler sees only what this thread gives back.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if "wait_tensor" in str(func):
            time.sleep(PAUSE_SECONDS)
        found = func(*args, **(kwargs or {}))
        if func.namespace == "c10d":
            time.sleep(PAUSE_SECONDS)
        return found


def zero_batch(recipe: Recipe, microbatches: int) -> StepBatch:
    batch = empty_batch(recipe, microbatches)
    batch.tokens.zero_()
    return batch


def measure(folder: RunFolder, rank: int) -> None:
    recipe = read_recipe(folder.recipe)
    module = Pretraining(recipe=recipe, eod_id=0)
    module.trainer = trainer_of(recipe)
    microbatches = recipe.derived_numbers.microbatches_per_step
    with (
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
        Unhurried(),
    ):
        module.configure_model()
        module.configure_optimizers()
        module.training_step(zero_batch(recipe, microbatches))
        kept = []
        for _ in range(STEPS):
            batch = zero_batch(recipe, microbatches)
            kept.append(addresses_in_use())
            with record_function(STEP):
                module.training_step(batch)
            del batch
    with CollectiveLedger(module.parallel_mesh) as calls, FlopLedger() as flops:
        module.training_step(zero_batch(recipe, microbatches))
    written = {
        "peak_bytes": peak_of(profiler, kept),
        "calls": [[*kind, count, calls.bytes[kind]] for kind, count in calls.calls.items()],
        "flops": by_operator(flops),
    }
    folder.write_json(f"measured-{rank}.json", written)


def by_operator(flops: FlopLedger) -> dict[str, int]:
    """Count linear maps of oneDNN as `mm`; the layouts have no biases."""
    found = flops.flops
    if by_onednn := found.pop(BY_ONEDNN, 0):
        found["mm"] += by_onednn
    return dict(found)


def addresses_in_use() -> set[int]:
    gc.collect()
    tensors = [tensor for tensor in gc.get_objects() if isinstance(tensor, torch.Tensor)]
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return {tensor.untyped_storage().data_ptr() for tensor in local}


def peak_of(profiler: profile, kept: list[set[int]]) -> int:
    with tempfile.TemporaryDirectory() as path:
        file = Path(path) / "trace.json"
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text("utf-8"))["traceEvents"]
    steps = [event for event in events if event.get("name") == STEP and event.get("ph") == "X"]
    within = [
        event for event in events if event.get("name") in IN_PLACE and event.get("ph") == "X"
    ]
    given = [event for event in events if event.get("name") == "[memory]"]
    given = [event for event in given if not any(is_within(event, span) for span in within)]
    given.sort(key=lambda event: event["ts"])
    return min(peak_in(step, given, before) for step, before in zip(steps, kept, strict=True))


def is_within(event: dict[str, Any], span: dict[str, Any]) -> bool:
    return bool(span["ts"] <= event["ts"] <= span["ts"] + span["dur"])


def peak_in(step: dict[str, Any], given: list[dict[str, Any]], kept: set[int]) -> int:
    """Sum live memory by address: the profiler's own total misses memory that gloo frees.

    A reused address was freed before, and memory without a tensor at the start of the step
    was freed too.
    """
    held: dict[int, int] = {}
    for event in given:
        if event["ts"] >= step["ts"]:
            break
        note(held, event)
    held = {address: size for address, size in held.items() if address in kept}
    peak = 0
    for event in given:
        if step["ts"] <= event["ts"] <= step["ts"] + step["dur"]:
            note(held, event)
            peak = max(peak, sum(held.values()))
    return peak


def note(held: dict[int, int], given: dict[str, Any]) -> None:
    address, size = given["args"]["Addr"], given["args"]["Bytes"]
    held.pop(address, None)
    if size > 0:
        held[address] = size


def connect_and_measure(folder: RunFolder, rank: int, ranks: int) -> None:
    torch.set_num_threads(1)
    store = (folder.path / "store").resolve()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    measure(folder, rank)
    dist.destroy_process_group()


def main(words: list[str]) -> None:
    rank, ranks = map(int, words[:2])
    for path in words[2:]:  # each in a new process without old memory
        folder = RunFolder(Path(path))
        child = get_context("fork").Process(
            target=connect_and_measure, args=(folder, rank, ranks)
        )
        child.start()
        child.join()
        assert child.exitcode == 0, path


if __name__ == "__main__":
    main(sys.argv[1:])
