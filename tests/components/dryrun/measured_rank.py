"""A real rank: ``python measured_rank.py RANK RANKS FOLDER [FOLDER]``.

It takes steps of each run folder's recipe on real tensors and real gloo, and writes the most
that torch's own CPU allocator had given out in one, as the profiler logs every allocation and
release from the start; and what collectives and FLOPs a step made. Of three steps after the
first the leanest counts: gloo's threads give back what they were lent when they come to it.
"""

import json
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from components.dryrun.collectives import CollectiveLedger
from components.dryrun.products import FlopLedger
from components.dryrun.world import NoBatches, empty_batch, trainer_of
from components.spec.recipe import read_recipe
from components.train.module import Pretraining
from components.train.run_folder import RunFolder

STEP, STEPS = "a later step", 3


def measure(folder: RunFolder, rank: int) -> None:
    recipe = read_recipe(folder.recipe)
    module = Pretraining(recipe=recipe, batches=lambda _: NoBatches(), eod_id=0)
    module.trainer = trainer_of(recipe)
    microbatches = recipe.derived.microbatches_per_step
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        module.configure_model()
        module.configure_optimizers()
        module.train_dataloader()
        module.training_step(empty_batch(recipe, microbatches).zero_())
        for _ in range(STEPS):
            batch = empty_batch(recipe, microbatches).zero_()
            with record_function(STEP):
                module.training_step(batch)
            del batch
    with CollectiveLedger(module.mesh) as calls, FlopLedger() as flops:
        module.training_step(empty_batch(recipe, microbatches).zero_())
    written = {
        "peak_bytes": peak_of(profiler),
        "calls": [[*kind, count, calls.bytes[kind]] for kind, count in calls.calls.items()],
        "flops": dict(flops.flops),
    }
    folder.write_json(f"measured-{rank}.json", written)


def peak_of(profiler: profile) -> int:
    with tempfile.TemporaryDirectory() as path:
        file = Path(path) / "trace.json"
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text("utf-8"))["traceEvents"]
    steps = [one for one in events if one.get("name") == STEP and one.get("ph") == "X"]
    assert len(steps) == STEPS
    given = [one for one in events if one.get("name") == "[memory]"]
    given.sort(key=lambda one: one["ts"])
    # Both are too high at times: by gloo's copies, or by what another thread has given back.
    whole = [(one["ts"], one["args"]["Total Allocated"]) for one in given]
    totals = (whole, totals_of(given, thread=steps[0]["tid"]))
    return min(
        max(total for at, total in kind if step["ts"] <= at <= step["ts"] + step["dur"])
        for step in steps
        for kind in totals
    )


def totals_of(given: list[dict[str, Any]], thread: int) -> list[tuple[float, int]]:
    """Add up what this thread took: gloo's threads make copies that no device has."""
    held: dict[int, int] = {}
    total, totals = 0, []
    for one in given:
        address, size = one["args"]["Addr"], one["args"]["Bytes"]
        if size > 0 and one["tid"] == thread:
            held[address] = size
            total += size
        elif size < 0:
            total -= held.pop(address, 0)
        totals.append((one["ts"], total))
    return totals


def connect_and_measure(folder: RunFolder, rank: int, ranks: int) -> None:
    torch.set_num_threads(1)
    store = (folder.path / "store").resolve()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    measure(folder, rank)
    dist.destroy_process_group()


def main(words: list[str]) -> None:
    rank, ranks = map(int, words[:2])
    for path in words[2:]:  # each in a process of its own, where nothing is left of another
        folder = RunFolder(Path(path))
        child = get_context("fork").Process(
            target=connect_and_measure, args=(folder, rank, ranks)
        )
        child.start()
        child.join()
        assert child.exitcode == 0, path


if __name__ == "__main__":
    main(sys.argv[1:])
