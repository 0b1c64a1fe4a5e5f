"""Two ranks of one thread each that a benchmark starts, on one host or over a link of it.

The benchmark's script starts itself once a rank; sides take turns, and a turn takes as long as
its slower rank.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]  # not in its __all__

from benchmarks.training.link import ProcessPlace
from components.child_process import python_environment

RANKS = 2
Seconds = dict[str, list[float]]


def measure_ranks(
    script: str, places: Sequence[ProcessPlace], *asked: str
) -> dict[str, Seconds]:
    """Run ``python -m script rank folder *asked`` in each place; return what ranks found."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [*place.words, sys.executable, "-m", script, str(rank), folder, *asked],
                env=python_environment(os.environ | dict(place.environment)),
            )
            for rank, place in enumerate(places)
        ]
        assert [rank.wait() for rank in ranks] == [0] * RANKS
        found: dict[str, Seconds] = json.loads(Path(folder, "found.json").read_text("utf-8"))
        return found


def be_rank(rank: int, folder: Path, find: Callable[[], Mapping[str, Seconds]]) -> None:
    """Join the other rank, and leave what both ``find``."""
    torch.set_num_threads(1)
    store = FileStore(str(folder / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    found = find()
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found), "utf-8")
    dist.destroy_process_group()


def take_turns(
    sides: Mapping[str, Callable[[], object]], *, warmup: int, rounds: int
) -> Seconds:
    """Time each side once a round, after some rounds that do not count."""
    seconds: Seconds = {side: [] for side in sides}
    for _ in range(warmup + rounds):
        for side, take in sides.items():
            dist.barrier()
            began = time.perf_counter()
            take()
            slower = torch.tensor(time.perf_counter() - began)
            dist.all_reduce(slower, dist.ReduceOp.MAX)
            seconds[side].append(slower.item())
    return {side: sofar[warmup:] for side, sofar in seconds.items()}
